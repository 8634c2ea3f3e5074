/** What runs say about themselves. */

import { now } from "./format";
import type { Message, Run } from "./types";

export function textOf(message: Message | null): string {
  return (message?.content ?? []).map((part) => (part.type === "text" ? part.text : "")).join("");
}

export function promptOf(run: Run): string {
  const text = textOf(run.input);
  if (text !== "") return text;
  if (run.kind === "fork_many") return "fan-out";
  if (run.kind === "fork_once") return "probe";
  if (run.kind === "fork") return "fork";
  return run.kind === "prompt" ? "another answer" : run.run_id;
}

/** The seconds from a run's first attempt to its end, or to now. */
export function runTime(run: Run): number | null {
  if (run.started_at === null) return null;
  const end = run.finished_at === null ? now.value : Date.parse(run.finished_at);
  return Math.max(0, (end - Date.parse(run.started_at)) / 1000);
}

export function isLive(run: Run): boolean {
  return run.status === "queued" || run.status === "running" || run.status === "suspended";
}
