/** Requests to the HTTP API. Every URL is relative to the base of the page, so that any prefix works. */

import { parse, write } from "./json";
import { keep, kept } from "./storage";
import type { Json, Page } from "./types";

const KEY = "runyard.key";
const ROOT = new URL("../", document.baseURI);

export type Query = Record<string, string | number | boolean | null | undefined | string[]>;

/** A refusal of the API, with the stable `code` and the sentence of its problem document. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly fields: { path?: string; field?: string; message?: string }[] = [],
    readonly request: string | null = null,
  ) {
    super(detail);
  }
}

/** Whether the API refused a cursor: another version or order made it. */
export function refusesCursor(error: unknown): error is ApiError {
  return error instanceof ApiError && error.code === "invalid_cursor";
}

/** Null in place of what the API says it does not have. Another error is raised. */
export function ifRefused(error: unknown): null {
  if (error instanceof ApiError && [400, 404, 410, 422].includes(error.status)) return null;
  throw error;
}

let refused: () => void = () => undefined;

/** Call `then` whenever the API does not accept the key. */
export function onRefusal(then: () => void): void {
  refused = then;
}

export function savedKey(): string | null {
  return kept("sessionStorage", KEY);
}

export function saveKey(key: string | null): void {
  keep("sessionStorage", KEY, key);
}

/** The URL of a path of the API. Raises ApiError for `.` and `..`, which are no ids, and which a browser resolves even if encoded. */
export function urlOf(path: string, query: Query = {}): URL {
  const wrong = path.split("/").find((each) => each === "" || each === "." || each === "..");
  if (wrong !== undefined) throw new ApiError(404, "not_found", `“${wrong}” is not an id`);
  const url = new URL(path, ROOT);
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) for (const each of value) url.searchParams.append(name, each);
    else if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, String(value));
  }
  return url;
}

export function headersWith(more: Record<string, string> = {}): Record<string, string> {
  const key = savedKey();
  return key === null ? more : { Authorization: `Bearer ${key}`, ...more };
}

/** Send a request and return the answer. Raises ApiError; a refusal for the rate is repeated once after its pause. */
export async function send(
  method: string,
  path: string,
  options: { query?: Query; body?: unknown; signal?: AbortSignal; key?: string } = {},
): Promise<Response> {
  const headers: Record<string, string> = {};
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  if (options.key !== undefined) headers["Idempotency-Key"] = options.key;
  const request = (): Promise<Response> =>
    fetch(urlOf(path, options.query), {
      method,
      headers: headersWith(headers),
      body: options.body === undefined ? null : write(options.body),
      signal: options.signal ?? null,
      credentials: "omit",
      cache: "no-store",
      referrerPolicy: "no-referrer",
    });
  let reply = await request();
  if (reply.status === 429 && (method === "GET" || options.key !== undefined)) {
    await new Promise((done) => setTimeout(done, 1000 * Math.min(5, Number(reply.headers.get("Retry-After") ?? 1))));
    reply = await request();
  }
  if (!reply.ok) throw await problem(reply);
  return reply;
}

export async function problem(reply: Response): Promise<ApiError> {
  let found: { code?: string; detail?: string; title?: string; errors?: []; instance?: string } = {};
  try {
    found = await reply.json();
  } catch {
    // a proxy's page
  }
  if (reply.status === 401) refused();
  const detail = found.detail ?? found.title ?? `the server answered ${reply.status}`;
  return new ApiError(reply.status, found.code ?? String(reply.status), detail, found.errors ?? [], found.instance ?? null);
}

async function bodyOf(reply: Response): Promise<unknown> {
  return reply.status === 204 ? null : parse(await reply.text());
}

/** Most items of one answer that a page shows. No page of a list has more; what else answers may send anything. */
const MOST_ITEMS = 1000;

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  const reply = await send("GET", path, signal === undefined ? { query } : { query, signal });
  const found: unknown = await bodyOf(reply);
  if (typeof found !== "object" || found === null) throw new ApiError(reply.status, "answer", "the server sent an answer that is not from the API");
  if ("items" in found && Array.isArray(found.items) && found.items.splice(MOST_ITEMS).length > 0) Object.assign(found, { cut: true });
  return found as T;
}

export function newKey(): string {
  return crypto.randomUUID?.() ?? String(Math.random());
}

/** `key`: the Idempotency-Key. A repetition with the same key does nothing twice. */
export async function post<T>(path: string, body: unknown = undefined, query: Query = {}, key = newKey()): Promise<T> {
  const reply = await send("POST", path, { body, query, key });
  return (await bodyOf(reply)) as T;
}

export async function put<T>(path: string, body: Json): Promise<T> {
  const reply = await send("PUT", path, { body });
  return (await bodyOf(reply)) as T;
}

export async function patch<T>(path: string, body: Json): Promise<T> {
  return (await bodyOf(await send("PATCH", path, { body }))) as T;
}

export async function remove(path: string, query: Query = {}): Promise<void> {
  await send("DELETE", path, { query });
}

const MOST_PAGES = 50;

export interface Gathered<T> {
  items: T[];
  /** The cursor of what was not read, or null at the end of the list. */
  next: string | null;
}

/** The entries of a list from `cursor` to its end, at most about `most`. Pages that a filter leaves empty are bounded, too. */
export async function gather<T>(path: string, query: Query, most: number, signal?: AbortSignal, cursor: string | null = null): Promise<Gathered<T>> {
  const found: T[] = [];
  let pages = 0;
  do {
    const page: Page<T> = await get<Page<T>>(path, { limit: Math.min(200, most), ...query, cursor }, signal);
    found.push(...page.items);
    cursor = page.next;
  } while (cursor !== null && found.length < most && ++pages < MOST_PAGES);
  return { items: found, next: cursor };
}

/** A text as a segment of a path. Half of a surrogate pair has no encoding. */
export function segment(text: string): string {
  return encodeURIComponent(text.replace(/\p{Surrogate}/gu, "\ufffd"));
}

/** Paths of the API. */
export const at = {
  thread: (thread: string, ...rest: string[]): string => ["v1/threads", ...[thread, ...rest].map((each) => segment(each))].join("/"),
  run: (thread: string, run: string, ...rest: string[]): string => at.thread(thread, "runs", run, ...rest),
  agent: (agent: string): string => `v1/agents/${segment(agent)}`,
  request: (request: string, ...rest: string[]): string => ["v1/requests", segment(request), ...rest].join("/"),
  queue: (queue: string, verb: string): string => `v1/queues/${segment(queue)}/${verb}`,
  worker: (worker: string, verb: string): string => `v1/workers/${segment(worker)}/${verb}`,
  webhook: (webhook: string): string => `v1/webhooks/${segment(webhook)}`,
  redelivery: (delivery: string): string => `v1/webhook_deliveries/${segment(delivery)}/redeliver`,
};
