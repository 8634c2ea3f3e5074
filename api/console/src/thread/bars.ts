/** The bars of a run's waterfall: a lane of the attempts, and one of each kind of entry of the timeline. */

import { brief, seconds } from "../format";
import type { Run, TimelineEntry } from "../types";

export interface Bar {
  kind: string;
  from: number;
  to: number;
  /** Words inside the bar, as far as they fit. */
  label: string;
  title: string;
  open: boolean;
  /** The row in its lane: bars that overlap are below one another. */
  row: number;
}

export interface Lane {
  name: string;
  bars: Bar[];
  rows: number;
}

export const MOST_ENTRIES = 500;
const MOST_ROWS = 3;
const BAD = new Set(["error", "failed", "lost", "dead", "retried"]);
/** The lanes that come first, by the types of their entries. A type that is missing here gets a lane with its own name. */
const LANES: Record<string, string> = {
  ...{ attempt: "attempts", model_request: "model requests", tool: "tools", step: "steps" },
  ...{ child: "children", sleep: "sleeps", signal: "signals" },
};
const LAST = "HITL requests";
/** What a lane has, for those who do not know the word. */
export const MEANINGS: Record<string, string> = {
  attempts: "the executions of the run by workers, and the waiting times before and between them",
  "model requests": "the requests of the agent to a model",
  tools: "the tools that the model called",
  steps: "the functions of the agent with recorded results; a later attempt does not call these functions again",
  [LAST]: "the questions to a human; each bar ends with the answer",
  children: "the runs that this run started",
  sleeps: "the times for which the run waits",
  signals: "the signals for which the run waits",
};
/** The kinds that have a colour of their own. */
const KINDS: Record<string, string> = { model_request: "model", tool: "tool", step: "tool", request: "request" };

/** The lanes of a run. `time`: the end of what has not ended. */
export function lanesOf(run: Run, entries: readonly TimelineEntry[], time: number): Lane[] {
  const until = run.finished_at === null ? time : Date.parse(run.finished_at);
  const moment = (value: string | null): number => (value === null ? until : Date.parse(value));
  const lanes = new Map<string, Bar[]>(Object.values(LANES).map((name) => [name, []]));
  const add = (lane: string, kind: string, from: number, to: number, label: string, words: string, open = false): void => {
    const end = Math.max(from, to);
    const bars = lanes.get(lane) ?? [];
    lanes.set(lane, bars);
    bars.push({ kind, from, to: end, label, title: `${brief(words, 200)}, ${seconds((end - from) / 1000)}`, open, row: 0 });
  };
  entries = entries.slice(0, MOST_ENTRIES);
  const attempts = entries.filter((each) => each.type === "attempt");
  const due = Math.max(Date.parse(run.accepted_at), run.run_at === null ? 0 : Date.parse(run.run_at));
  const first = attempts[0];
  add("attempts", "queued", due, first ? moment(first.started_at) : until, "", "queued", !first && run.finished_at === null);
  attempts.forEach((each, n) => {
    const end = moment(each.ended_at);
    const kind = BAD.has(each.status ?? "") ? "attempt bad" : "attempt";
    const label = `${n + 1} ${each.status ?? ""}`;
    add("attempts", kind, moment(each.started_at), end, label, `attempt ${label} on ${each.name ?? "?"}`, each.ended_at === null);
    const next = attempts[n + 1];
    if (each.ended_at === null || (next === undefined && run.finished_at !== null)) return;
    const gap = each.status === "suspended" ? "suspended" : "waiting";
    add("attempts", gap, end, next ? moment(next.started_at) : until, "", gap === "waiting" ? "between attempts" : "parked", next === undefined);
  });
  const asked: TimelineEntry[] = [];
  for (const each of entries) {
    if (each.type === "attempt" || each.type === "message") continue;
    if (each.type === "request") asked.push(each);
    else draw(LANES[each.type] ?? `${each.type.replace(/_/g, " ")}s`, each);
  }
  for (const each of asked) draw(LAST, each);

  function draw(lane: string, each: TimelineEntry): void {
    const name = each.name ?? (each.type === "model_request" ? "" : each.id); // such an id is that of the message
    const bad = BAD.has(each.status ?? "") || each.error !== null;
    const child = each.type === "child" ? `run ${each.id}` : "";
    const words = [each.type.replace(/_/g, " "), name, child, each.status, each.input].filter(Boolean).join(" ");
    const open = each.ended_at === null && run.finished_at === null;
    add(lane, `${KINDS[each.type] ?? "other"}${bad ? " bad" : ""}`, moment(each.started_at ?? each.at), moment(each.ended_at), name, words, open);
  }

  return [...lanes].filter(([, bars]) => bars.length > 0).map(([name, bars]) => ({ name, bars, rows: placeRows(bars) }));
}

/** Give each bar the first row in which nothing overlaps it. Returns the number of rows. */
function placeRows(bars: Bar[]): number {
  const ends: number[] = [];
  for (const bar of bars.sort((a, b) => a.from - b.from)) {
    const free = ends.findIndex((end) => end <= bar.from);
    bar.row = free >= 0 ? free : Math.min(ends.length, MOST_ROWS - 1);
    ends[bar.row] = Math.max(bar.to, ends[bar.row] ?? 0);
  }
  return ends.length;
}
