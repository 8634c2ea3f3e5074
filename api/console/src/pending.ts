/** The number of requests that wait for a human, for the badge of the inbox. */

import { signal } from "@preact/signals";
import { get } from "./api";
import type { HitlRequest, Page } from "./types";
import { wait } from "./sse";

export const pending = signal(0);

export async function countPending(): Promise<void> {
  try {
    pending.value = (await get<Page<HitlRequest>>("v1/requests", { limit: 100 })).items.length;
  } catch {
    // the page itself reports what fails
  }
}

/** Count now and every half minute, while somebody looks. Returns what ends it. */
export function watchPending(): () => void {
  const over = new AbortController();
  void (async () => {
    while (!over.signal.aborted) {
      if (!document.hidden) await countPending();
      await wait(30_000, over.signal);
    }
  })();
  return () => over.abort();
}
