/** The runs of a thread and its pending requests: the newest runs, those that have not ended, and those in sight with their attempts. */

import { batch, computed, signal } from "@preact/signals";
import { at, get, ifRefused } from "../api";
import { isLive } from "../runs";
import type { Attempt, HitlRequest, Message, Page, Run, RunStatus } from "../types";
import { readAttempts } from "./attempts";
import { Repeated } from "./repeated";

/** The newest runs of the thread that are read. */
export const RUNS = 100;
/** Pending requests of a page of them. The oldest come first. */
export const REQUESTS = 50;
/** Most pages of requests that are read. */
const MOST_PAGES = 20;
/** Fewest milliseconds until the pages of requests behind the first one are read again. */
const BETWEEN_PAGES = 30_000;
/** Fewest milliseconds between two reads of the runs that have not ended and are older than the newest. */
const BETWEEN = 5000;
/** Runs whose end is looked for at once: those that no list of runs that have not ended has. */
const ENDED = 5;
/** Runs in sight, and runs whose attempts, that are read at once: each by itself. */
const FEW = 5;
/** Milliseconds until what came into sight is read: somebody may only scroll past it. */
const SOON = 300;
const LIVE: RunStatus[] = ["queued", "running", "suspended"];

/** Stands for the message at the end of the thread. */
export const HEAD = "";

/** The pages of requests behind the first one, and where the next page begins. */
interface Further {
  pages: number;
  items: HitlRequest[];
  next: string | null;
  /** When one of them was read last. */
  at: number;
}

const NONE: Further = { pages: 0, items: [], next: null, at: 0 };

export class ThreadRuns {
  /** The newest first. */
  readonly runs = signal<ReadonlyMap<string, Run>>(new Map());
  readonly attempts = signal<ReadonlyMap<string, Attempt[]>>(new Map());
  readonly requests = signal<HitlRequest[]>([]);
  /** Whether the thread has more runs, or more pending requests, than were read. */
  readonly moreRuns = signal(false);
  readonly moreRequests = signal(false);
  /** Whether no more pages of requests are read. */
  readonly mostRequests = signal(false);
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
  private looked = -BETWEEN;
  private first: Page<HitlRequest> = { items: [], next: null };
  private further = NONE;
  /** Whether the newest runs were read. Those in sight wait for them. */
  private ready = false;
  /** The messages that are near sight, by their chunk. */
  private near = new Map<string, Message[]>();
  /** Runs that no page of runs has: those of an ancestor. */
  private unlisted = new Set<string>();
  /** Runs that there are no more. */
  private missing = new Set<string>();
  /** The status and the number of attempts of each run when its attempts were read. */
  private states = new Map<string, string>();
  private looking = new Repeated(() => this.readInSight());

  constructor(readonly id: string) {}

  /** Forget the runs. The requests stay until others are read: a form that is filled in waits for them. */
  protected clear(): void {
    this.ready = false;
    this.runs.value = new Map();
    this.further = NONE;
    this.beyond = new Map();
    this.unlisted.clear();
    this.missing.clear();
    this.looked = -BETWEEN;
  }

  /** Read the newest runs and the pending requests. They are shown if `wanted` says so when they arrive. */
  protected async read(over: AbortSignal, wanted: () => boolean): Promise<void> {
    const [page, first] = await Promise.all([
      get<Page<Run>>(at.thread(this.id, "runs"), { limit: RUNS }, over),
      this.readRequests(null, over),
    ]);
    await this.readFurther(first.next, over);
    if (page.next !== null) await this.readBeyond(page.items, over);
    if (!wanted()) return;
    batch(() => {
      this.put(page.items);
      this.first = first;
      this.putRequests();
      this.moreRuns.value = page.next !== null;
    });
    this.ready = true;
    this.looking.soon(0);
  }

  /** Read another page of requests. */
  async readMoreRequests(): Promise<void> {
    const { first, further } = this;
    const cursor = further.pages === 0 ? first.next : further.next;
    if (cursor === null || further.pages >= MOST_PAGES - 1) return;
    const page = await this.readRequests(cursor, this.over.signal);
    if (this.further !== further) return; // they were read again meanwhile
    this.further = { pages: further.pages + 1, items: [...further.items, ...page.items], next: page.next, at: performance.now() };
    this.putRequests();
  }

  private readRequests(cursor: string | null, over: AbortSignal): Promise<Page<HitlRequest>> {
    return get<Page<HitlRequest>>("v1/requests", { thread_id: this.id, limit: REQUESTS, cursor }, over);
  }

  /** Read the further pages of requests again, if that was long ago. `next`: where they begin. */
  private async readFurther(next: string | null, over: AbortSignal): Promise<void> {
    const known = this.further;
    if (known.pages === 0 || performance.now() - known.at < BETWEEN_PAGES) return;
    const found: Further = { pages: 0, items: [], next, at: performance.now() };
    while (found.pages < known.pages && found.next !== null) {
      const page: Page<HitlRequest> = await this.readRequests(found.next, over);
      found.pages += 1;
      found.items.push(...page.items);
      found.next = page.next;
    }
    if (this.further === known) this.further = found;
  }

  /** Show a request no longer that has an answer. */
  protected answered(id: unknown): void {
    const { items } = this.further;
    if (items.some((each) => each.request_id === id)) this.further = { ...this.further, items: items.filter((each) => each.request_id !== id) };
  }

  private putRequests(): void {
    const { first } = this;
    if (first.next === null) this.further = NONE;
    const { pages, items, next } = this.further;
    const known = new Set(first.items.map((each) => each.request_id));
    batch(() => {
      this.requests.value = [...first.items, ...items.filter((each) => !known.has(each.request_id))];
      this.moreRequests.value = (pages === 0 ? first.next : next) !== null;
      this.mostRequests.value = pages >= MOST_PAGES - 1;
    });
  }

  /** Read the runs of a chunk of messages, which is near sight. Returns what ends this. */
  look(chunk: string, messages: Message[]): () => void {
    this.near.set(chunk, messages);
    this.looking.soon(SOON);
    return () => void (this.near.get(chunk) === messages && this.near.delete(chunk));
  }

  /** Read the runs near sight, and their attempts: a page of runs, and a few by themselves. The rest is read after them. */
  private async readInSight(): Promise<void> {
    const over = this.over.signal;
    if (!this.ready || over.aborted) return;
    // of each run the newest message, the newest first
    const messages = [...this.near.values()].flat().sort((a, b) => (a.created_at ?? "").localeCompare(b.created_at ?? ""));
    const ids = new Map(messages.flatMap((each) => (each.run_id === null ? [] : [[each.run_id, each.created_at] as const])));
    const lacking = [...ids].reverse().filter(([id]) => !this.runs.value.has(id) && !this.missing.has(id));
    if (lacking.length > 0) await this.readLacking(new Map(lacking), over);
    const known = [...ids.keys()].flatMap((id) => this.runs.value.get(id) ?? []);
    const changed = known.filter((run) => run.attempt > 1 && this.states.get(run.run_id) !== stateOf(run));
    await Promise.all(changed.slice(0, FEW).map((run) => this.readAttempts(run, over)));
    if (lacking.some(([id]) => !this.runs.value.has(id) && !this.missing.has(id)) || changed.length > FEW) this.looking.soon(SOON);
  }

  /** Read runs that are not among the newest. `lacking`: the time of a message of each. */
  private async readLacking(lacking: Map<string, string | null>, over: AbortSignal): Promise<void> {
    const listed = [...lacking].filter(([id]) => !this.unlisted.has(id));
    const until = Math.max(...listed.map(([, time]) => Date.parse(time ?? "") || 0)) + 1000;
    const page = listed.length === 0 ? [] : (await get<Page<Run>>(at.thread(this.id, "runs"), { before: new Date(until).toISOString(), limit: RUNS }, over)).items;
    const found = page.filter((run) => lacking.has(run.run_id));
    const has = new Set(found.map((run) => run.run_id));
    for (const [id] of listed) if (!has.has(id)) this.unlisted.add(id);
    const single = async (id: string): Promise<void> => {
      const run = await get<Run>(at.run(this.id, id), {}, over).catch(ifRefused);
      if (run === null) this.missing.add(id);
      else found.push(run);
    };
    await Promise.all([...lacking.keys()].filter((id) => !has.has(id)).slice(0, FEW).map(single));
    if (over.aborted) return;
    for (const run of found) this.beyond.set(run.run_id, run);
    this.put([...this.runs.value.values()]);
  }

  private async readAttempts(run: Run, over: AbortSignal): Promise<void> {
    const { items } = await readAttempts(this.id, run.run_id, over);
    if (over.aborted) return;
    this.states.set(run.run_id, stateOf(run));
    this.attempts.value = new Map(this.attempts.value).set(run.run_id, items);
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

/** The prompts that ended without an answer after the newest run of the messages. `runs`: the newest first, as in what is returned. */
export function unansweredAfter(messages: readonly Message[], runs: Run[]): Run[] {
  const last = messages.findLast((each) => each.run_id !== null)?.run_id;
  const index = runs.findIndex((each) => each.run_id === last);
  const newer = index < 0 ? runs : runs.slice(0, index);
  return newer.filter((each) => each.kind === "prompt" && !isLive(each) && each.status !== "completed");
}

/** What the attempts of a run change with. */
function stateOf(run: Run): string {
  return `${run.status} ${run.attempt}`;
}
