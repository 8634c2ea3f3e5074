/** What the page of a thread shows: the family, the chosen path as far as it was read, the runs, and what streams in. */

import { batch, computed, signal } from "@preact/signals";
import { ApiError, at, get, ifRefused, refusesCursor } from "../api";
import { brief } from "../format";
import { place, setQuery } from "../router";
import { ENDS, follow } from "../sse";
import type { Branch, Message, Page, RunEvent, Thread } from "../types";
import { FamilyModel } from "./family";
import { build, forksOf, headOf } from "./lanes";
import { after, NOTHING, Seen, settled } from "./live";
import { type Chunk, inOrder, lastMessage, PAGE, pathOf, resultsOf, withAdded, withEnd } from "./path";
import { Repeated } from "./repeated";
import { ThreadRuns, unansweredAfter } from "./runs";
import { note } from "../ui/dialog";
import { Restarts } from "../ui/restarts";
import { selectionOf, type Target } from "./target";

/** Most pages that are read to find the path of a message. */
const MOST_SEARCHED = 20;
/** The same if somebody asks for the end of the path. */
const MOST_SEARCHED_FOR_END = 200;

export class ThreadModel extends ThreadRuns {
  readonly thread = signal<Thread | null>(null);
  /** Why the thread cannot be shown: the API's answer that there is none. */
  readonly error = signal<ApiError | null>(null);
  /** Why the path, or what is beside it, could not be read. */
  readonly failure = signal<unknown>(null);
  /** Why what a link names, or the end of the path, was not found, and how to try again. */
  readonly lost = signal<{ says: string; again: () => unknown } | null>(null);
  readonly family = new FamilyModel(() => this.over.signal);
  /** The message that ends the path; null follows the head of the thread. */
  readonly leaf = signal<string | null>(null);
  readonly chunks = signal<Chunk[]>([]);
  readonly loading = signal(true);
  readonly older = signal<string | null>(null);
  /** Why the older messages are not read, until somebody asks again: the API refuses their cursor. */
  readonly refused = signal<ApiError | null>(null);
  readonly writing = signal(NOTHING);
  readonly selection = computed(() => selectionOf(place.value.query));
  readonly gaps = signal(0);
  readonly connected = signal(false);

  readonly messages = computed(() => this.chunks.value.flatMap((chunk) => chunk.messages));
  readonly results = computed(() => resultsOf(this.messages.value));
  readonly beside = computed(() => new Set(this.results.value.values()));
  /** The leaves of the thread. Of very many not all are read: then the head, which is among the newest, is that of the path. */
  readonly leaves = computed(() => {
    const known = this.family.branches.value.get(this.id) ?? [];
    const last = this.leaf.value === null ? this.messages.value.at(-1) : undefined;
    const lacks = last !== undefined && this.family.hasMoreLeaves(this.id) && !known.some((each) => each.head);
    return lacks ? [...known, headOf(last)] : known;
  });
  readonly path = computed<Branch | null>(() => {
    const found = this.leaves.value.find((each) => (this.leaf.value === null ? each.head : each.message_id === this.leaf.value));
    const last = this.messages.value.at(-1)?.id;
    return found ?? this.leaves.value.find((each) => each.message_id === last) ?? null;
  });
  /** Whether the path was chosen by a message that other messages follow. */
  readonly cut = computed(() => {
    const last = this.messages.value.at(-1);
    const writing = last?.run_status === "running" || last?.run_status === "suspended";
    return this.leaf.value !== null && last !== undefined && !writing && this.leaves.value.length > 0 && this.path.value === null;
  });
  /** Counts the messages to which the page was led. */
  readonly revealed = signal(0);
  readonly forks = computed(() => (this.path.value ? forksOf(this.path.value, this.leaves.value) : []));
  readonly tree = computed(() => build(this.family.threads.value, new Map(this.family.branches.value).set(this.id, this.leaves.value), this.jobs.value, this.family.fanOuts.value));
  /** Prompts that ended without an answer after the newest run of the head, newest first: no message of theirs is on its path. */
  readonly unanswered = computed(() => {
    if (this.leaf.value !== null) return [];
    return unansweredAfter(this.messages.value, [...this.runs.value.values()].filter((each) => each.thread_id === this.id));
  });

  private generation = 0;
  /** Counts the paths that were chosen: what was read for another one is not shown. */
  private paths = 0;
  /** The path that the place named last. The shown one may have grown since. */
  private named: string | null = null;
  private visited: Target | null = null;
  /** Ends the search for a path. */
  private search = new AbortController();
  private seen = new Seen();
  private readonly repeated = new Repeated(() => this.reload());

  /** `parameter`: the part of the query of the place that names the path. */
  constructor(
    id: string,
    private parameter: "leaf" | "other_leaf" = "leaf",
  ) {
    super(id);
  }

  /** Change the place so that it names a path. */
  to(leaf: string | null, replace = false): void {
    setQuery({ [this.parameter]: leaf, message: null, run: null, request: null, event: null }, replace);
  }

  /** Read the thread and follow it. `leaf`: the end of the path, or null for the head. Returns whether nobody chose another path meanwhile; null after `close`. */
  async open(leaf: string | null): Promise<boolean | null> {
    const own = ++this.generation;
    this.over.abort();
    this.over = new AbortController();
    this.repeated.start();
    const signal = this.over.signal;
    let path = 0;
    batch(() => {
      path = this.choose(leaf);
      this.error.value = null;
      this.writing.value = NOTHING;
      this.clear();
      this.gaps.value = 0;
    });
    this.seen = new Seen();
    const search = this.search;
    const reads = [this.readThread(own), this.readPath(path), this.readRuns(own), this.family.readLeaves(this.id)];
    const reasons = (await Promise.allSettled(reads)).map((each) => (each.status === "rejected" ? (each.reason as unknown) : null));
    if (own !== this.generation) return null;
    const [missing] = reasons;
    if (path === this.paths) this.loading.value = false;
    if (missing instanceof ApiError && missing.status === 404) return false;
    if (path === this.paths) this.failure.value = reasons.find((each) => each !== null) ?? null;
    void this.family.open(this.id);
    void follow(at.thread(this.id, "stream"), signal, (event) => this.hear(event), {
      onState: (open) => {
        this.connected.value = open;
        if (open) this.reloadSoon(0);
      },
      onGap: () => (this.gaps.value += 1),
    });
    return search === this.search;
  }

  close(): void {
    this.generation += 1;
    this.search.abort();
    this.over.abort();
    this.family.close();
    this.repeated.stop();
  }

  /** Choose a path, of which nothing is read yet. Returns its number. */
  private choose(leaf: string | null): number {
    this.seek();
    if (leaf !== this.leaf.value) this.restarts = new Restarts();
    this.named = leaf;
    batch(() => {
      this.leaf.value = leaf;
      this.chunks.value = [];
      this.older.value = null;
      this.refused.value = null;
      this.loading.value = true;
      this.failure.value = null;
    });
    return ++this.paths;
  }

  /** Show another path of the same thread. */
  async show(leaf: string | null): Promise<void> {
    const path = this.choose(leaf);
    try {
      await this.readPath(path);
    } catch (error) {
      if (path === this.paths) this.failure.value = error;
    } finally {
      if (path === this.paths) this.loading.value = false;
    }
  }

  /** Show what a link names. A link without a path leads to the branch that has its message or run. */
  async visit(target: Target): Promise<void> {
    const { leaf, message, run } = target;
    const lacks = (): boolean => this.chunks.value.length === 0 && !this.loading.value;
    const reading = leaf === this.named && !lacks() ? this.seek() : this.show(leaf);
    const over = this.search.signal;
    this.visited = target;
    await reading;
    if (over.aborted || this.error.value !== null) return;
    const shown = this.messages.value;
    if (message === null ? run === null || shown.some((each) => each.run_id === run) : shown.some((each) => each.id === message)) return;
    await this.lead(over, "The target of the link", () => this.visit(target), async () => {
      if (lacks()) throw this.failure.value;
      if (!this.family.branches.value.has(this.id)) await this.family.readLeaves(this.id);
      const end = message ?? (await lastMessage(this.id, run as string, over));
      if (end !== undefined) await this.reveal(end, MOST_SEARCHED, over);
    });
  }

  /** Read everything again, and follow the link that was followed last. */
  async again(): Promise<void> {
    if ((await this.open(this.leaf.value)) && this.visited !== null) await this.visit(this.visited);
  }

  /** Show the end of a path that was chosen by a message before it. */
  async showEnd(): Promise<void> {
    const leaf = this.leaf.value;
    if (leaf === null) return;
    this.seek();
    const over = this.search.signal;
    await this.lead(over, "The end of the path", () => this.showEnd(), async () => {
      if (!(await this.reveal(leaf, MOST_SEARCHED_FOR_END, over))) note("The end of this path is too far away. Choose a branch in the tree.", true);
    });
  }

  /** End the search for a path: another choice was made. */
  private seek(): void {
    this.search.abort();
    this.search = new AbortController();
    this.lost.value = null;
  }

  /** Look for a path. A failure is kept, with the way to try again; after another choice, nothing is. */
  private async lead(over: AbortSignal, what: string, again: () => unknown, look: () => Promise<void>): Promise<void> {
    try {
      await look();
    } catch (error) {
      if (!over.aborted) this.lost.value = { says: `${what} could not be read: ${(error as Error).message}`, again };
    }
  }

  /** Show the branch that has a message, from the message to its end. If it is not found, the path ends with the message.
   *  Returns whether it was found, or is known not to exist. */
  private async reveal(id: string, most: number, over: AbortSignal): Promise<boolean> {
    const leaves = inOrder(this.leaves.value, id, this.path.value);
    const message = await get<Message>(at.thread(this.id, "messages", id), {}, over).catch(ifRefused);
    if (over.aborted) return true;
    if (message === null) {
      note(`The thread has no message ${brief(id, 40)}. This is its end.`, true);
      return true;
    }
    const found = await pathOf(message, leaves, (leaf, cursor) => this.page(leaf, cursor, over), most);
    if (over.aborted) return true;
    const end = found === null ? id : found.leaf.head ? null : found.leaf.message_id;
    if (found === null && this.named === id) return false;
    if (found === null) await this.show(end);
    else {
      const { chunks, older } = found;
      batch(() => {
        this.choose(end);
        this.chunks.value = chunks;
        this.older.value = older;
        this.loading.value = false;
      });
      this.reloadSoon(0);
    }
    if (end !== this.named) return true;
    this.revealed.value += 1;
    setQuery({ [this.parameter]: end });
    return found !== null;
  }

  /** Read a page of older messages. Returns whether it is shown; what was read for another path is not. */
  async readOlder(): Promise<boolean> {
    const cursor = this.older.value;
    const path = this.paths;
    const leaf = this.leaf.value;
    if (cursor === null || this.reading) return false;
    this.reading = true;
    try {
      const page = await this.page(leaf, cursor);
      if (path !== this.paths || cursor !== this.older.value) return false;
      batch(() => {
        this.chunks.value = [{ key: cursor, messages: page.items.reverse() }, ...this.chunks.value];
        this.older.value = page.next;
        this.refused.value = null;
      });
      this.restarts.further();
      return true;
    } catch (error) {
      if (path !== this.paths || cursor !== this.older.value) return false;
      if (this.restarts.after(error)) await this.show(leaf);
      else if (refusesCursor(error)) this.refused.value = error;
      return false;
    } finally {
      this.reading = false;
    }
  }

  private reading = false;
  private restarts = new Restarts();

  private page(leaf: string | null, cursor: string | null, over = this.over.signal): Promise<Page<Message>> {
    return get<Page<Message>>(at.thread(this.id, "messages"), { order: "newest_first", limit: PAGE, leaf_id: leaf, cursor }, over);
  }

  /** Read the newest page of the path. A path to a message that the thread does not have is replaced by that to the head. */
  private async readPath(path: number): Promise<void> {
    const leaf = this.leaf.value;
    let page: Page<Message>;
    try {
      page = await this.page(leaf, null);
    } catch (error) {
      if (leaf === null || !(error instanceof ApiError) || ![400, 404, 422].includes(error.status)) throw error;
      if (path !== this.paths) return;
      this.leaf.value = null;
      await this.readPath(path);
      note(`The thread has no message ${brief(leaf, 40)}. This is its end.`, true);
      return;
    }
    if (path !== this.paths) return;
    batch(() => {
      this.chunks.value = [{ key: "newest", messages: page.items.reverse() }];
      this.older.value = page.next;
      this.loading.value = false;
    });
  }

  private async readThread(own: number): Promise<void> {
    let thread: Thread;
    try {
      thread = await get<Thread>(at.thread(this.id), {}, this.over.signal);
    } catch (error) {
      if (own === this.generation && error instanceof ApiError && error.status === 404) this.lose(error);
      throw error;
    }
    if (own !== this.generation) return;
    this.thread.value = thread;
    this.family.add([thread]);
  }

  private readRuns(own: number): Promise<void> {
    return this.read(this.over.signal, () => own === this.generation);
  }

  private hear(event: RunEvent): void {
    if (event.type === "gap") return this.reloadSoon(30); // a gap may be of no thread
    if (event.thread_id !== this.id || this.seen.has(event)) return;
    this.writing.value = after(this.writing.value, event);
    if (event.type === "message.completed" && !this.addMessage(event)) this.reloadSoon(250);
    if (event.type === "candidate.ended" || ENDS.test(event.type)) this.family.changed(this.id, event.run_id);
    if (event.type === "hitl.answered") this.answered(event.data.request_id);
    if (/^(run|hitl)\./.test(event.type)) this.reloadSoon(30);
  }

  /** Append a completed message at once if it continues the shown path. Returns whether the path has it. */
  private addMessage(event: RunEvent): boolean {
    const message = event.data.message as unknown as Message | undefined;
    if (!Array.isArray(message?.content)) return false;
    const shown = this.messages.value;
    if (shown.some((each) => each.id === message.id)) return true;
    if (shown.length === 0 || message.parent_id !== shown.at(-1)?.id) return false;
    const last = this.chunks.value.at(-1) as Chunk;
    const added = { ...message, run_status: message.run_status ?? "running" } as Message;
    this.chunks.value = [...this.chunks.value.slice(0, -1), { ...last, messages: [...last.messages, added] }];
    if (this.leaf.value !== null && this.leaf.value === message.parent_id) this.leaf.value = message.id;
    return true;
  }

  /** Read the end of the path, the runs and the leaves again, at the earliest of the times that were asked for. */
  reloadSoon(milliseconds: number): void {
    this.repeated.soon(milliseconds);
  }

  /** Read again what other people may have changed, and the stream does not tell. */
  async refresh(): Promise<void> {
    if (this.error.value !== null || this.loading.value || this.refreshing) return;
    this.refreshing = true;
    try {
      await Promise.all([this.repeated.now(), this.family.refresh(this.id)]);
    } finally {
      this.refreshing = false;
    }
  }

  private refreshing = false;

  /** Show that there is no such thread, and follow it no longer. */
  private lose(error: ApiError): void {
    this.error.value = error;
    this.over.abort();
  }

  private async reload(): Promise<void> {
    const own = this.generation;
    const path = this.paths;
    const before = this.writing.value;
    try {
      await Promise.all([this.readEnd(path), this.readRuns(own), this.family.refreshLeaves(this.id), this.readThread(own)]);
    } catch (error) {
      if (own === this.generation && this.error.value === null) throw error;
      return;
    }
    if (own === this.generation) this.writing.value = settled(this.writing.value, before, this.messages.value, this.runs.value);
    if (path === this.paths) this.failure.value = null;
  }

  private async readEnd(path: number): Promise<void> {
    const leaf = this.leaf.value;
    const before = new Set(this.messages.value.map((each) => each.id));
    const page = await this.page(leaf, null);
    if (path !== this.paths || leaf !== this.leaf.value) return;
    const added = this.messages.value.filter((each) => !before.has(each.id));
    const chunks = withEnd(this.chunks.value, withAdded(page.items.reverse(), added));
    batch(() => {
      if (chunks.length === 1) this.older.value = page.next;
      this.chunks.value = chunks;
    });
  }
}
