/** Streams of events through fetch, which can send the key in a header, unlike EventSource. */

import { headersWith, problem, urlOf } from "./api";
import { parse } from "./json";
import type { RunEvent } from "./types";

export interface Frame {
  id: string | null;
  event: RunEvent | null;
}

/** The events with which a run stops. The stream of a run ends after one of them. */
export const ENDS = /^run\.(completed|failed|cancelled|dead|suspended)$/;

const FIRST_PAUSE = 500;
/** Milliseconds after which a connection counts as a good one, even if it brought nothing. */
const LASTING = 10_000;

/** Read the frames of a body of server-sent events. */
export async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame> {
  const reader = body.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      let searched = Math.max(0, rest.length - 1); // a large event comes in many pieces
      rest += value;
      let end: number;
      while ((end = rest.indexOf("\n\n", searched)) >= 0) {
        yield frame(rest.slice(0, end));
        rest = rest.slice(end + 2);
        searched = 0;
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function frame(text: string): Frame {
  let id: string | null = null;
  let data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  return { id, event: data === "" ? null : eventOf(data) };
}

/** The event of a frame. Null for what is no event: a stream that passes through a proxy may bring anything. */
function eventOf(data: string): RunEvent | null {
  try {
    const found = parse(data) as Partial<RunEvent> | null;
    const whole = typeof found?.type === "string" && typeof found.thread_id === "string" && typeof found.run_id === "string";
    return whole && typeof found.data === "object" && found.data !== null ? (found as RunEvent) : null;
  } catch {
    return null;
  }
}

/**
 * Follow a stream until `signal` ends it, or the server says that there is no more (204, or the end of the stream after the run's
 * last event when `once`: a process that shuts down ends its streams, too).
 * A lost connection continues after the last id, and ever later if it brings nothing. While the page is hidden no connection is open: browsers have few per server.
 */
export async function follow(
  path: string,
  signal: AbortSignal,
  onEvent: (event: RunEvent) => void,
  options: { once?: boolean; onState?: (open: boolean) => void; onGap?: () => void } = {},
): Promise<void> {
  let last: string | null = null;
  let pause = FIRST_PAUSE;
  let ended = false;
  while (!signal.aborted) {
    await visible(signal);
    const connection = new AbortController();
    const leave = (): void => connection.abort();
    const hide = (): void => void (document.hidden && leave());
    signal.addEventListener("abort", leave);
    document.addEventListener("visibilitychange", hide);
    try {
      const more: Record<string, string> = { Accept: "text/event-stream" };
      if (last !== null) more["Last-Event-ID"] = last;
      const reply = await fetch(urlOf(path), {
        headers: headersWith(more),
        signal: connection.signal,
        credentials: "omit",
        cache: "no-store",
      });
      if (reply.status === 204) return;
      if (!reply.ok || reply.body === null) throw await problem(reply);
      const opened = Date.now();
      options.onState?.(true);
      for await (const each of frames(reply.body)) {
        if (each.id !== null) last = each.id;
        if (each.event !== null || Date.now() - opened > LASTING) pause = FIRST_PAUSE;
        if (each.event?.type === "gap") options.onGap?.();
        if (each.event !== null) {
          ended = ENDS.test(each.event.type);
          onEvent(each.event);
        }
      }
      if (options.once === true && ended) return;
    } catch (error) {
      if (signal.aborted) return;
      const status = (error as { status?: number }).status;
      if (status !== undefined && status >= 400 && status < 500 && status !== 429) return;
    } finally {
      options.onState?.(false);
      signal.removeEventListener("abort", leave);
      document.removeEventListener("visibilitychange", hide);
    }
    await wait(pause, signal);
    pause = Math.min(pause * 2, 10_000);
  }
}

export function wait(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

function visible(signal: AbortSignal): Promise<void> {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => {
    const check = (): void => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", check);
      done();
    };
    document.addEventListener("visibilitychange", check);
    signal.addEventListener("abort", check, { once: true });
  });
}
