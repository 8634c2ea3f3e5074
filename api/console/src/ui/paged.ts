/** Lists that are read page by page, as far as somebody scrolls, and whose beginning is read again. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get, type Query } from "../api";
import type { Page } from "../types";
import { useLive } from "./live";

export interface Paged<T> {
  items: T[];
  loading: boolean;
  error: unknown;
  ended: boolean;
  more: () => void;
  refresh: () => Promise<void>;
}

/** `of`: the identity of an item; newer items with a known identity replace the older ones. */
export function usePaged<T>(path: string, query: Query, of: (item: T) => string, every = 5000, limit = 100): Paged<T> {
  const key = JSON.stringify([path, query]);
  const [older, setOlder] = useState<{ key: string; items: T[]; next: string | null; started: boolean }>({ key, items: [], next: null, started: false });
  const reading = useRef(false);
  const first = useLive<Page<T>>(key, (signal) => get<Page<T>>(path, { limit, ...query }, signal), every);
  useEffect(() => setOlder({ key, items: [], next: null, started: false }), [key]);
  const own = older.key === key ? older : { key, items: [], next: null, started: false };
  const next = own.started ? own.next : (first.value?.next ?? null);
  const more = useCallback(() => {
    if (reading.current || next === null) return;
    reading.current = true;
    get<Page<T>>(path, { limit, ...query, cursor: next })
      .then((page) =>
        setOlder((old) => ({ key, items: [...(old.key === key ? old.items : []), ...page.items], next: page.next, started: true })),
      )
      .catch(() => undefined)
      .finally(() => (reading.current = false));
  }, [key, next]);
  const seen = new Set<string>();
  const items = [...(first.value?.items ?? []), ...own.items].filter((item) => {
    const id = of(item);
    if (seen.has(id)) return false;
    seen.add(id);
    return true;
  });
  return { items, loading: first.loading, error: first.error, ended: next === null, more, refresh: first.refresh };
}
