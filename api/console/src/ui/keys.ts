/** Keys of a page. A key that somebody types into a field is not a command, nor is one typed into what took the place of a field. */

import { useEffect, useRef } from "preact/hooks";

/** Keys that somebody may hold down. */
const MOVES = new Set(["ArrowDown", "ArrowUp", "j", "k"]);

/** What somebody types into. */
export const FIELDS = "input, textarea, select, [contenteditable]";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.target as HTMLElement;
      if (target.closest(`${FIELDS}, [data-typing]`) || document.querySelector("dialog[open]")) return;
      const act = latest.current[event.key];
      if (!act || (event.repeat && !MOVES.has(event.key))) return;
      event.preventDefault();
      act(event);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
