/** The place in the console: the path below its base, and the query. Every place is a link. */

import { computed, signal } from "@preact/signals";
import { segment } from "./api";

const BASE = new URL("./", document.baseURI);

export interface Place {
  path: string[];
  query: URLSearchParams;
}

const located = (): string => location.pathname + location.search;
/** The path and the query of the shown place. */
let shown = located();

function here(): Place {
  const { pathname, search } = new URL(shown, location.href);
  const rest = pathname.startsWith(BASE.pathname) ? pathname.slice(BASE.pathname.length) : "";
  return { path: rest.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(search) };
}

/** A segment of a path as text. One that is not UTF-8 stays encoded. */
function decoded(encoded: string): string {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded;
  }
}

export const place = signal<Place>(here());
export const page = computed(() => place.value.path[0] ?? "threads");

addEventListener("popstate", () => {
  shown = located();
  place.value = here();
});

/** The URL of a place. */
export function href(path: string[], query: Record<string, string | null | undefined> = {}): string {
  const url = new URL(path.map(segment).join("/"), BASE);
  for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
  return url.pathname + url.search;
}

export function go(to: string, replace = false): void {
  if (to === shown) return;
  shown = to;
  clearTimeout(late);
  try {
    history[replace ? "replaceState" : "pushState"](null, "", to);
  } catch {
    late = window.setTimeout(() => history.replaceState(null, "", shown), LATE);
  }
  place.value = here();
}

/** Milliseconds after which a place that the browser refused is its address: Safari allows 100 changes in 30 seconds. */
const LATE = 30_000;
let late = 0;

/** Returns a function that tells whether this page is still shown, with these values in its query. */
export function staying(...names: string[]): () => boolean {
  const of = ({ path, query }: Place): string => JSON.stringify([path, names.map((name) => query.get(name))]);
  const before = of(place.value);
  return () => of(place.value) === before;
}

/** Change parts of the query of this place; null removes one. */
export function setQuery(changes: Record<string, string | null>, replace = true): void {
  const [path, before] = shown.split("?");
  const query = new URLSearchParams(before);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(path + (text === "" ? "" : `?${text}`), replace);
}

/** Follow links inside the console without loading the page again. */
export function interceptLinks(): void {
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
    if (link.target !== "" || link.origin !== location.origin || !link.pathname.startsWith(BASE.pathname)) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
