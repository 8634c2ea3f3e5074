/** Lists that are read page by page, as far as somebody scrolls, and whose beginning is read again. */

import { useCallback, useRef } from "preact/hooks";
import { get, type Query } from "../api";
import type { Page } from "../types";
import { note } from "./dialog";
import { useLive } from "./live";

/** Entries from which on a list begins again with its first page, when that is read again. */
const MOST_KEPT = 10_000;

export interface Paged<T> {
  items: T[];
  loading: boolean;
  error: unknown;
  ended: boolean;
  more: () => Promise<void>;
  refresh: () => Promise<void>;
}

interface Known<T> extends Page<T> {
  key: string;
  /** Whether somebody asked for more than the first page. */
  deep: boolean;
}

/** The query for what is not older than `within` seconds. */
export function recent(within: number | undefined): { since?: string } {
  return within === undefined ? {} : { since: new Date(Date.now() - within * 1000).toISOString() };
}

/** `of`: the identity of an item. `within`: most seconds since an item began. */
export function usePaged<T>(path: string, query: Query, of: (item: T) => string, every = 5000, limit = 100, within?: number): Paged<T> {
  const key = JSON.stringify([path, query, within]);
  const known = useRef<Known<T>>({ key, items: [], next: null, deep: false });
  const reading = useRef(false);
  const page = (cursor: string | null, signal?: AbortSignal): Promise<Page<T>> =>
    get<Page<T>>(path, { limit, ...query, ...recent(within), cursor }, signal);
  const first = async (signal: AbortSignal): Promise<Known<T>> => {
    const newest = await page(null, signal);
    const old = known.current.key === key && known.current.deep ? known.current : null;
    return (known.current = { key, deep: false, ...newest, ...(old && joined(newest, old, of)) });
  };
  const list = useLive<Known<T>>(key, first, every);
  const more = useCallback(async (): Promise<void> => {
    const { next } = known.current;
    if (reading.current || known.current.key !== key || next === null) return;
    reading.current = true;
    known.current.deep = true;
    try {
      const older = await page(next);
      if (known.current.key === key && known.current.next === next)
        list.set((known.current = { key, items: distinct([...known.current.items, ...older.items], of), next: older.next, deep: true }));
    } catch (error) {
      note(error instanceof Error ? error.message : String(error), true);
    } finally {
      reading.current = false;
    }
  }, [key]);
  const { items, next } = list.value ?? { items: [], next: null };
  return { items, loading: list.loading, error: list.error, ended: next === null, more, refresh: list.refresh };
}

/** The first page as it is now, and the known entries behind its last one. Null if the page has nothing in common with them. */
function joined<T>(page: Page<T>, known: Known<T>, of: (item: T) => string): Omit<Known<T>, "key"> | null {
  if (page.next === null || known.items.length > MOST_KEPT) return null;
  const last = page.items.at(-1);
  const end = last === undefined ? -1 : known.items.findIndex((each) => of(each) === of(last));
  if (last !== undefined && end < 0) return null;
  return { items: distinct([...page.items, ...known.items.slice(end + 1)], of), next: known.next, deep: true };
}

function distinct<T>(items: T[], of: (item: T) => string): T[] {
  const seen = new Set<string>();
  return items.filter((each) => seen.size < seen.add(of(each)).size);
}
