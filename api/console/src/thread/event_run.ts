/** The run of an event. The first part of an event's id is a number that no other run has: that of an attempt, or of an end. */

import { isLive } from "../runs";
import type { Run } from "../types";
import { readAttempts } from "./attempts";

/** Most runs whose attempts are read. */
const MOST = 30;

/** Return the id of the run among `runs`, or null. Raises an error if what may be the run could not be read. */
export async function runOfEvent(event: string, runs: Run[], over: AbortSignal): Promise<string | null> {
  const [number = ""] = event.split("-");
  const ended = runs.find((each) => each.event_id?.split("-")[0] === number);
  if (ended) return ended.run_id;
  // the last event of a run that was tried once has the number of its attempt
  const others = runs.filter((each) => each.attempt > 0 && (each.attempt > 1 || each.status === "cancelled" || isLive(each))).slice(0, MOST);
  const has = async (run: Run): Promise<boolean> => (await readAttempts(run.thread_id, run.run_id, over)).items.some((each) => String(each.fence) === number);
  const found = await Promise.allSettled(others.map(has));
  const index = found.findIndex((each) => each.status === "fulfilled" && each.value);
  const failed = found.find((each) => each.status === "rejected");
  if (index < 0 && failed) throw failed.reason;
  return others[index]?.run_id ?? null;
}
