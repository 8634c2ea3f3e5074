/** Keys of a page. A key that somebody types into a field is not a command. */

import { useEffect, useRef } from "preact/hooks";

/** Keys that somebody may hold down. */
const MOVES = new Set(["ArrowDown", "ArrowUp", "j", "k"]);

export type Keys = Record<string, (event: KeyboardEvent) => void>;

export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target as HTMLElement;
      if (target.matches("input, textarea, select, [contenteditable]") || document.querySelector("dialog[open]")) return;
      const act = latest.current[event.key];
      if (!act || (event.repeat && !MOVES.has(event.key))) return;
      event.preventDefault();
      act(event);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
