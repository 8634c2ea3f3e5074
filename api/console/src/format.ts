/** Numbers and times for people. */

import { signal } from "@preact/signals";

/** The time, which ages on the page follow. It stands still while the page is hidden. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return "0 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 60) return `${Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} m ${Math.round(value % 60)} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} m`;
  return `${Math.floor(value / 86400)} d ${Math.round((value % 86400) / 3600)} h`;
}

export function age(iso: string | null | undefined, at: number): string {
  if (!iso) return "–";
  const gone = (at - Date.parse(iso)) / 1000;
  const size = Math.abs(gone);
  const text = size < 60 ? `${Math.floor(size)}s` : size < 3600 ? `${Math.floor(size / 60)}m` : size < 86400 ? `${Math.floor(size / 3600)}h` : `${Math.floor(size / 86400)}d`;
  return gone < 0 ? `in ${text}` : text;
}

export function clock(iso: string | null | undefined): string {
  if (!iso) return "–";
  return new Date(iso).toLocaleTimeString(undefined, { hour12: false, hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

export function moment(iso: string | null | undefined): string {
  if (!iso) return "–";
  return new Date(iso).toLocaleString(undefined, { hour12: false, dateStyle: "medium", timeStyle: "medium" });
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}

/** The sum of numbers of tokens. */
export function tokens(...amounts: number[]): string {
  const value = amounts.reduce((sum, each) => sum + Number(each), 0); // a large one is a bigint
  return value < 1000 ? String(value) : value < 1e6 ? `${(value / 1000).toFixed(value < 1e4 ? 1 : 0)}k` : `${(value / 1e6).toFixed(1)}M`;
}

export function money(value: number): string {
  return value === 0 ? "$0" : value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
}

export function size(bytes: number): string {
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** The beginning of a text in one line. */
export function brief(text: string, most: number): string {
  const line = text.slice(0, 4 * most + 100).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

/** The beginning of a text in one line, without the marks of Markdown. */
export function gist(text: string, most: number): string {
  return brief(text.slice(0, 4 * most + 100).replace(/^[ \t]*(?:#{1,6}|>|[-*+]|\|)[ \t]+/gm, "").replace(/\*\*|`+/g, ""), most);
}

/** A short form of an id: the end of a UUID, whose beginning is its time. */
export function shortId(id: string): string {
  return /^[0-9a-f]{8}-[0-9a-f]{4}-/.test(id) && id.length === 36 ? id.slice(-8) : id.length > 24 ? `${id.slice(0, 22)}…` : id;
}
