/** The place in the console: the path below its base, and the query. Every place is a link. */

import { computed, signal } from "@preact/signals";
import { segment } from "./api";

const BASE = new URL("./", document.baseURI);

export interface Place {
  path: string[];
  query: URLSearchParams;
}

function here(): Place {
  const rest = location.pathname.startsWith(BASE.pathname) ? location.pathname.slice(BASE.pathname.length) : "";
  return { path: rest.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(location.search) };
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

addEventListener("popstate", () => (place.value = here()));

/** The URL of a place. */
export function href(path: string[], query: Record<string, string | null | undefined> = {}): string {
  const url = new URL(path.map(segment).join("/"), BASE);
  for (const [name, value] of Object.entries(query)) if (value) url.searchParams.set(name, value);
  return url.pathname + url.search;
}

export function go(to: string, replace = false): void {
  if (to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  place.value = here();
}

/** Change parts of the query of this place; null removes one. */
export function setQuery(changes: Record<string, string | null>, replace = true): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(location.pathname + (text === "" ? "" : `?${text}`), replace);
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
