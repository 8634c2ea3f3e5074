/** The family of a thread: ancestors and forks, their leaves, and the candidates of fan-outs. Each is read when its row is in sight. */

import { batch, signal } from "@preact/signals";
import { at, gather, get } from "../api";
import { brief, count } from "../format";
import type { Branch, Candidate, FanOutProgress, Lineage, Page, Run, Thread } from "../types";
import { ends } from "./lanes";
import { Restarts } from "../ui/restarts";
import { Reads } from "./reads";

const LEAVES = 200;
const MOST_LEAVES = 2000;
const MOST_FORKS = 2000;
const CANDIDATES = 20;
const MOST_NAME = 40;
/** Fewest milliseconds between two readings of a page of leaves again. */
const BETWEEN = 1000;
/** Threads in sight whose leaves are read again at once. */
const REFRESHED = 4;
/** Milliseconds within which the ends of several candidates are one reason to read. */
const TOGETHER = 300;

export interface FanOut {
  candidates: Candidate[];
  progress: FanOutProgress;
  winner: number | null;
  /** Where the next page of candidates begins. */
  next: string | null;
}

export class FamilyModel {
  readonly threads = signal<Thread[]>([]);
  readonly branches = signal<ReadonlyMap<string, Branch[]>>(new Map());
  /** By the id of the job. */
  readonly fanOuts = signal<ReadonlyMap<string, FanOut>>(new Map());

  /** Sentences about what the tree does not show, by what was read. */
  readonly bounds = signal<ReadonlyMap<string, string>>(new Map());

  private reads = new Reads();
  /** When the leaves of a thread were read last, in milliseconds. */
  private readAt = new Map<string, number>();
  /** When the reading of the leaves that are shown began. */
  private shownAt = new Map<string, number>();
  private timers = new Map<string, number>();
  /** How many rows of a thread are in sight. */
  private inSight = new Map<string, number>();
  private restarts = new Map<string, Restarts>();
  /** Fan-outs that are about to be read again. */
  private waiting = new Set<string>();

  /** `signal`: what ends the readings. */
  constructor(private signal: () => AbortSignal) {}

  /** Read what surrounds a thread. */
  async open(id: string): Promise<void> {
    this.reads.mark(id);
    try {
      const lineage = await get<Lineage>(at.thread(id, "lineage"), { limit: 200 }, this.signal());
      const far = lineage.next_ancestor;
      this.bound("ancestors", far === null ? null : `The ancestors before ${brief(far, MOST_NAME)} are not shown.`);
      const above = lineage.ancestors.filter((each) => each.deleted_at === null).reverse();
      this.add([...above, lineage.thread, ...lineage.children]);
      for (const each of above) this.want(each.thread_id);
      if (lineage.next_children !== null) this.reads.once(`forks ${id}`, () => this.readForks(id));
    } catch {
      // the thread itself is shown
    }
  }

  async readLeaves(thread: string): Promise<void> {
    const begun = performance.now();
    this.readAt.set(thread, begun);
    const found = await gather<Branch>(at.thread(thread, "branches"), { limit: LEAVES }, MOST_LEAVES, this.signal());
    if (begun < (this.shownAt.get(thread) ?? begun)) return; // what a later reading found is shown
    this.shownAt.set(thread, begun);
    const words = `Only the first ${count(found.items.length, "branch", "branches")} of ${brief(thread, MOST_NAME)} are shown.`;
    batch(() => {
      this.bound(`branches ${thread}`, found.next === null ? null : words);
      this.branches.value = new Map(this.branches.value).set(thread, ends(found.items));
    });
  }

  /** Whether the thread has more leaves than were read. */
  hasMoreLeaves(thread: string): boolean {
    return this.bounds.value.has(`branches ${thread}`);
  }

  /** Read the leaves of a thread again: at most once a second, and less often the more pages they have. */
  async refreshLeaves(thread: string): Promise<void> {
    const pages = Math.ceil((this.branches.value.get(thread)?.length ?? 0) / LEAVES) || 1;
    const due = (this.readAt.get(thread) ?? -Infinity) + pages * BETWEEN - performance.now();
    if (due <= 0) return this.readLeaves(thread);
    if (this.timers.has(thread)) return;
    const read = (): void => {
      this.timers.delete(thread);
      if (!document.hidden) void this.readLeaves(thread).catch(() => undefined);
    };
    this.timers.set(thread, window.setTimeout(read, due));
  }

  close(): void {
    for (const timer of this.timers.values()) clearTimeout(timer);
    this.timers.clear();
  }

  /** Read a family again that is shown: its threads, and the leaves of some of those in sight, the oldest reading first. */
  async refresh(id: string): Promise<void> {
    await this.open(id);
    for (const each of this.inSight.keys()) this.want(each); // those that failed
    const age = (thread: string): number => this.readAt.get(thread) ?? Infinity;
    const stale = [...this.inSight.keys()].filter((each) => each !== id).sort((a, b) => age(a) - age(b));
    for (const each of stale.slice(0, REFRESHED)) await this.readLeaves(each).catch(() => undefined);
  }

  /** Read the leaves and forks of a thread, a row of which is in sight until the returned function is called. */
  look(thread: string): () => void {
    this.want(thread);
    this.inSight.set(thread, (this.inSight.get(thread) ?? 0) + 1);
    return () => {
      const left = (this.inSight.get(thread) ?? 1) - 1;
      if (left > 0) this.inSight.set(thread, left);
      else this.inSight.delete(thread);
    };
  }

  /** Read the leaves and forks of a thread. */
  want(thread: string): void {
    this.reads.once(thread, () => Promise.all([this.readLeaves(thread), this.readForks(thread)]));
  }

  private async readForks(thread: string): Promise<void> {
    const found = await gather<Thread>("v1/threads", { parent_thread_id: thread }, MOST_FORKS, this.signal());
    const words = `Only the first ${count(found.items.length, "fork")} of ${brief(thread, MOST_NAME)} are shown.`;
    this.bound(`forks ${thread}`, found.next === null ? null : words);
    this.add(found.items);
  }

  private bound(name: string, words: string | null): void {
    const known = this.bounds.value.get(name) ?? null;
    if (known === words) return;
    const next = new Map(this.bounds.value);
    if (words === null) next.delete(name);
    else next.set(name, words);
    this.bounds.value = next;
  }

  /** Read the first candidates of a fan-out. */
  wantFanOut(job: Run): void {
    this.reads.once(`job ${job.run_id}`, () => this.readFanOut(job.thread_id, job.run_id));
  }

  /** Read a fan-out again of which something has ended, if it was read before. */
  changed(thread: string, run: string): void {
    if (!this.fanOuts.value.has(run) || this.waiting.has(run)) return;
    this.waiting.add(run);
    window.setTimeout(() => {
      this.waiting.delete(run);
      void this.readFanOut(thread, run).catch(() => undefined);
    }, TOGETHER);
  }

  async moreCandidates(job: Run): Promise<void> {
    const known = this.fanOuts.value.get(job.run_id);
    if (!known?.next) return;
    const restarts = this.restarts.get(job.run_id) ?? new Restarts();
    this.restarts.set(job.run_id, restarts);
    try {
      const page = await get<Page<Candidate>>(at.run(job.thread_id, job.run_id, "candidates"), { limit: CANDIDATES, cursor: known.next }, this.signal());
      restarts.further();
      this.set(job.run_id, { ...known, candidates: [...known.candidates, ...page.items], next: page.next });
    } catch (error) {
      if (!restarts.after(error)) throw error;
      await this.readFanOut(job.thread_id, job.run_id, true);
    }
  }

  /** `anew`: only the first candidates, although others are known. */
  private async readFanOut(thread: string, id: string, anew = false): Promise<void> {
    const [run, progress, page] = await Promise.all([
      get<Run>(at.run(thread, id), {}, this.signal()),
      get<FanOutProgress>(at.run(thread, id, "progress"), {}, this.signal()),
      get<Page<Candidate>>(at.run(thread, id, "candidates"), { limit: CANDIDATES }, this.signal()),
    ]);
    const chosen = typeof run.result === "object" && run.result !== null && !Array.isArray(run.result) ? run.result.winner : null;
    const more = this.fanOuts.value.get(id);
    const beyond = !anew && more && more.candidates.length > page.items.length;
    this.set(id, {
      candidates: beyond ? [...page.items, ...more.candidates.slice(page.items.length)] : page.items,
      progress,
      winner: typeof chosen === "number" ? chosen : null,
      next: beyond ? more.next : page.next,
    });
  }

  private set(run: string, found: FanOut): void {
    this.fanOuts.value = new Map(this.fanOuts.value).set(run, found);
  }

  /** Add threads, every thread after its parent. */
  add(found: Thread[]): void {
    const known = new Map(this.threads.value.map((each) => [each.thread_id, each]));
    for (const each of found) known.set(each.thread_id, each);
    const ordered: Thread[] = [];
    const placed = new Set<string>();
    const place = (thread: Thread): void => {
      if (placed.has(thread.thread_id)) return;
      placed.add(thread.thread_id);
      const parent = thread.parent_thread_id === null ? undefined : known.get(thread.parent_thread_id);
      if (parent) place(parent);
      ordered.push(thread);
    };
    for (const each of [...known.values()].sort((a, b) => (a.created_at < b.created_at ? -1 : 1))) place(each);
    this.threads.value = ordered;
  }
}
