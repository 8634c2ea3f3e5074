/** The attempts of a run, the first one first. */

import { at, gather, type Gathered } from "../api";
import type { Attempt } from "../types";

const MOST = 1000;

export function readAttempts(thread: string, run: string, signal?: AbortSignal): Promise<Gathered<Attempt>> {
  return gather<Attempt>(at.run(thread, run, "attempts"), {}, MOST, signal);
}
