/** Lists that are read page by page, as far as somebody scrolls. The beginning and what is in sight are read again. A list whose
 * cursor the API refuses begins again with its first page. */

import { useCallback, useMemo, useRef } from "preact/hooks";
import { get, refusesCursor, type Query } from "../api";
import type { Page } from "../types";
import { note } from "./dialog";
import { useLive } from "./live";
import { Restarts } from "./restarts";

/** Entries from which on a list begins again with its first page, when that is read again. */
const MOST_KEPT = 10_000;
/** Most pages of new entries of one reading. With more, the list begins again with its first page. */
const MOST_NEW = 5;
/** Most pages behind the first one that are read again at once. */
const MOST_AGAIN = 3;

export interface Paged<T> {
  items: T[];
  loading: boolean;
  error: unknown;
  ended: boolean;
  more: () => Promise<void>;
  refresh: () => Promise<void>;
  /** Tell which items are in sight: from index `first` to before `last`. Without it, all are. */
  look: (first: number, last: number) => void;
}

/** Entries behind a cursor: about a page. */
interface Part<T> {
  cursor: string | null;
  items: T[];
  /** When it was read. */
  at: number;
}

interface Known<T> extends Page<T> {
  key: string;
  parts: Part<T>[];
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
  const known = useRef<Known<T>>({ key, items: [], parts: [], next: null, deep: false });
  const reading = useRef(false);
  const restarts = useMemo(() => new Restarts(), [key]);
  const sight = useRef<[number, number]>([0, Infinity]);
  const read = async (cursor: string | null, signal?: AbortSignal): Promise<[Part<T>, string | null]> => {
    const page = await get<Page<T>>(path, { limit, ...query, ...recent(within), cursor }, signal);
    return [{ cursor, items: page.items, at: Date.now() }, page.next];
  };
  const made = (parts: Part<T>[], next: string | null, deep: boolean): Known<T> =>
    (known.current = { key, parts, next, deep, items: distinct(parts.flatMap((each) => each.items), of) });
  const kept = (): Known<T> | null => (known.current.key === key && known.current.deep && known.current.items.length <= MOST_KEPT ? known.current : null);

  const begin = (): void => void (known.current = { key, items: [], parts: [], next: null, deep: false });

  const refresh = async (signal: AbortSignal): Promise<Known<T>> => {
    try {
      return await again(signal);
    } catch (error) {
      if (!refusesCursor(error)) throw error;
      begin();
      return again(signal);
    }
  };
  const again = async (signal: AbortSignal): Promise<Known<T>> => {
    let [part, next] = await read(null, signal);
    const fresh = [part];
    const before = new Set(kept()?.items.map(of));
    const meets = (): boolean => part.items.length === 0 || before.has(of(part.items.at(-1) as T));
    while (before.size > 0 && next !== null && !meets() && fresh.length < MOST_NEW) {
      [part, next] = await read(next, signal);
      fresh.push(part);
    }
    const all = (): Part<T>[] => [...fresh, ...behind(part, next, kept(), of)];
    const reread = new Map<string | null, [Part<T>, string | null]>();
    for (const each of inSight(all(), fresh.length, sight.current, of)) reread.set(each.cursor, await read(each.cursor, signal));
    const parts = all(); // somebody may have asked for more meanwhile
    const last = parts.at(-1) as Part<T>;
    const page = reread.get(last.cursor);
    const end = parts.length === fresh.length ? next : page ? page[1] : known.current.next;
    return made(parts.map((each) => renewed(each, reread.get(each.cursor), of)), end, parts.length > 1);
  };
  const list = useLive<Known<T>>(key, refresh, every);
  const more = useCallback(async (): Promise<void> => {
    const { next } = known.current;
    if (reading.current || known.current.key !== key || next === null) return;
    reading.current = true;
    known.current.deep = true;
    try {
      const [part, after] = await read(next);
      restarts.further();
      if (known.current.key === key && known.current.next === next) list.set(made([...known.current.parts, part], after, true));
    } catch (error) {
      if (known.current.key !== key || known.current.next !== next) return;
      if (restarts.after(error)) {
        begin();
        return await list.refresh();
      }
      note(error instanceof Error ? error.message : String(error), true);
    } finally {
      reading.current = false;
    }
  }, [key]);
  const look = useCallback((first: number, last: number): void => void (sight.current = [first, last]), []);
  const { items, next } = list.value ?? { items: [], next: null };
  return { items, loading: list.loading, error: list.error, ended: next === null, more, refresh: list.refresh, look };
}

/** The known parts behind `part`, whose end has the cursor `next`. None if it has nothing in common with them. */
function behind<T>(part: Part<T>, next: string | null, known: Known<T> | null, of: (item: T) => string): Part<T>[] {
  if (next === null || known === null) return [];
  const last = part.items.at(-1);
  const from = last === undefined ? 0 : known.parts.findIndex((each) => each.items.some((item) => of(item) === of(last)));
  const cut = known.parts[from];
  if (cut === undefined) return [];
  const rest = last === undefined ? cut.items : cut.items.slice(cut.items.findIndex((item) => of(item) === of(last)) + 1);
  const [after, ...others] = known.parts.slice(from + 1);
  if (after === undefined) return rest.length > 0 ? [{ ...cut, cursor: next, items: rest }] : [];
  if (rest.length + after.items.length <= part.items.length) return [{ cursor: next, items: [...rest, ...after.items], at: Math.min(cut.at, after.at) }, ...others];
  return [{ ...cut, cursor: next, items: rest }, after, ...others];
}

/** The parts from number `from` on with entries in sight, those first that were read the longest ago. */
function inSight<T>(parts: Part<T>[], from: number, [first, last]: [number, number], of: (item: T) => string): Part<T>[] {
  const seen = new Set<string>();
  const found = parts.filter((part, n) => {
    const begin = seen.size;
    for (const each of part.items) seen.add(of(each));
    return n >= from && begin < last && seen.size > first;
  });
  return found.sort((a, b) => a.at - b.at).slice(0, MOST_AGAIN);
}

/** A part that was read again. A page may be smaller than the part: what is behind its end stays. */
function renewed<T>(part: Part<T>, again: [Part<T>, string | null] | undefined, of: (item: T) => string): Part<T> {
  if (again === undefined) return part;
  const [{ items, ...page }, next] = again;
  const last = items.at(-1);
  const end = last === undefined || next === null ? -1 : part.items.findIndex((each) => of(each) === of(last));
  return { ...page, items: end < 0 ? items : [...items, ...part.items.slice(end + 1)] };
}

function distinct<T>(items: T[], of: (item: T) => string): T[] {
  const seen = new Set<string>();
  return items.filter((each) => seen.size < seen.add(of(each)).size);
}
