/** Actions that somebody may ask for twice, by another click or after an error, and that happen once. */

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { newKey } from "../api";

export interface Once {
  busy: boolean;
  /** Do something unless it is being done. Equal content has the same Idempotency-Key until it succeeds. */
  act: (content: string, send: (key: string) => Promise<unknown>) => Promise<void>;
}

export function useOnce(): Once {
  const busy = useSignal(false);
  const unsent = useRef<{ content: string; key: string } | null>(null);
  return {
    get busy() {
      return busy.value;
    },
    act: async (content, send) => {
      if (busy.value) return;
      busy.value = true;
      try {
        if (unsent.current?.content !== content) unsent.current = { content, key: newKey() };
        await send(unsent.current.key);
        unsent.current = null;
      } finally {
        busy.value = false;
      }
    },
  };
}
