/** The runs of a thread, with their attempts and pending requests: the newest, those that have not ended, and those in sight. */

import { batch, computed, signal } from "@preact/signals";
import { at, get } from "../api";
import { isLive } from "../runs";
import type { Attempt, HitlRequest, Page, Run, RunStatus } from "../types";
import { readAttempts } from "./attempts";
import { Reads } from "./reads";

/** The newest runs of the thread, and its oldest pending requests, that are read. */
export const RUNS = 100;
const REQUESTS = 50;
/** Fewest milliseconds between two reads of the runs that have not ended and are older than the newest. */
const BETWEEN = 5000;
/** Runs whose end is looked for at once: those that no list of runs that have not ended has. */
const ENDED = 5;
const LIVE: RunStatus[] = ["queued", "running", "suspended"];

/** Stands for the message at the end of the thread. */
export const HEAD = "";

export class ThreadRuns {
  /** The newest first. */
  readonly runs = signal<ReadonlyMap<string, Run>>(new Map());
  readonly attempts = signal<ReadonlyMap<string, Attempt[]>>(new Map());
  readonly requests = signal<HitlRequest[]>([]);
  /** Whether the thread has more runs, or more pending requests, than were read. */
  readonly moreRuns = signal(false);
  readonly moreRequests = signal(false);
  /** The runs that have not ended, the oldest first. */
  readonly live = computed(() => [...this.runs.value.values()].filter(isLive).reverse());
  readonly jobs = computed(() => [...this.runs.value.values()].filter((each) => each.kind === "fork_many" || each.kind === "fork_once"));
  /** How many prompts wait behind a message, or behind the head. */
  readonly queued = computed(() => {
    const found = new Map<string, number>();
    for (const run of this.live.value) {
      if (run.status !== "queued" || run.kind !== "prompt") continue;
      const behind = run.parent_id ?? HEAD;
      found.set(behind, (found.get(behind) ?? 0) + 1);
    }
    return found;
  });

  /** Ends what the page reads. */
  protected over = new AbortController();
  private beyond = new Map<string, Run>();
  private reads = new Reads();
  private looked = -BETWEEN;
  /** Whether the newest runs were read. What is wanted before waits for them. */
  private ready = false;
  private wanted = new Set<string>();

  constructor(readonly id: string) {}

  /** Forget the runs and the requests. */
  protected clear(): void {
    this.ready = false;
    this.wanted.clear();
    this.runs.value = new Map();
    this.requests.value = [];
    this.beyond = new Map();
    this.reads.clear();
    this.looked = -BETWEEN;
  }

  /** Read the newest runs and the pending requests. They are shown if `wanted` says so when they arrive. */
  protected async read(over: AbortSignal, wanted: () => boolean): Promise<void> {
    const [page, requests] = await Promise.all([
      get<Page<Run>>(at.thread(this.id, "runs"), { limit: RUNS }, over),
      get<Page<HitlRequest>>("v1/requests", { thread_id: this.id, limit: REQUESTS }, over),
    ]);
    if (page.next !== null) await this.readBeyond(page.items, over);
    if (!wanted()) return;
    batch(() => {
      this.put(page.items);
      this.requests.value = requests.items;
      this.moreRuns.value = page.next !== null;
      this.moreRequests.value = requests.next !== null;
    });
    this.ready = true;
    for (const id of this.wanted) this.want(id);
    this.wanted.clear();
    for (const run of this.runs.value.values()) if (run.attempt > 1) void this.readAttempts(run);
  }

  /** Read a run that somebody looks at, unless it is known. */
  want(id: string): void {
    if (!this.ready) return void this.wanted.add(id);
    if (this.runs.value.has(id)) return;
    this.reads.once(id, async () => {
      const run = await get<Run>(at.run(this.id, id));
      this.beyond.set(id, run);
      this.put([...this.runs.value.values()]);
      if (run.attempt > 1) await this.readAttempts(run);
    });
  }

  async readAttempts(run: Run): Promise<void> {
    const known = this.attempts.value.get(run.run_id);
    if (known && known.length === run.attempt && known.at(-1)?.outcome !== "running") return;
    try {
      const { items } = await readAttempts(run.thread_id, run.run_id);
      this.attempts.value = new Map(this.attempts.value).set(run.run_id, items);
    } catch {
      // the inspector reports it
    }
  }

  /** Read the runs that have not ended, or had not when they were read last, and are not among the newest. */
  private async readBeyond(newest: Run[], over: AbortSignal): Promise<void> {
    if (performance.now() - this.looked < BETWEEN) return;
    this.looked = performance.now();
    const pages = await Promise.all(LIVE.map((status) => get<Page<Run>>(at.thread(this.id, "runs"), { status, limit: RUNS }, over)));
    const found = new Map(pages.flatMap((page) => page.items).map((run) => [run.run_id, run]));
    const recent = new Set(newest.map((run) => run.run_id));
    const ended = [...this.beyond.values()].filter((run) => isLive(run) && !found.has(run.run_id) && !recent.has(run.run_id));
    for (const run of found.values()) this.beyond.set(run.run_id, run);
    const again = async (run: Run): Promise<void> => {
      const read = await get<Run>(at.run(this.id, run.run_id), {}, over).catch(() => run);
      if (over.aborted) return;
      this.beyond.delete(run.run_id); // the others come before it the next time
      this.beyond.set(run.run_id, read);
    };
    await Promise.all(ended.slice(0, ENDED).map(again));
  }

  private put(newest: Run[]): void {
    const all = new Map(newest.map((run) => [run.run_id, run]));
    for (const [id, run] of this.beyond) if (!all.has(id)) all.set(id, run);
    const order = (a: Run, b: Run): number => (a.accepted_at < b.accepted_at ? 1 : a.accepted_at > b.accepted_at ? -1 : 0);
    this.runs.value = new Map([...all].sort(([, a], [, b]) => order(a, b)));
  }
}
