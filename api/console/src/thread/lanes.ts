/**
 * The tree of a family of threads as rows: one per leaf, below the leaf from whose path it parts. One pass over the paths: a
 * segment belongs to the first leaf that goes through it, and a later leaf hangs on the owner of its last owned segment.
 */

import type { Branch, Candidate, Message, Run, Thread } from "../types";
import type { FanOut } from "./family";

export interface Node {
  key: string;
  kind: "leaf" | "thread" | "job" | "candidate" | "more";
  thread: Thread;
  branch: Branch | null;
  run: Run | null;
  candidate: Candidate | null;
  fanOut: FanOut | null;
  parent: Node | null;
  /** The number of the message after which it parts from its parent. */
  seq: number;
  children: Node[];
}

export interface Row {
  node: Node;
  depth: number;
  /** For each depth above: whether the line of the parent there goes on below this row. */
  lines: boolean[];
  last: boolean;
  folded: boolean;
}

function node(kind: Node["kind"], key: string, thread: Thread, parent: Node | null, seq: number): Node {
  const made: Node = { key, kind, thread, branch: null, run: null, candidate: null, fanOut: null, parent, seq, children: [] };
  parent?.children.push(made);
  return made;
}

/** Build the tree. `threads`: every thread after its parent. `branches`: the leaves of a thread. Returns the roots. */
export function build(
  threads: readonly Thread[],
  branches: ReadonlyMap<string, Branch[]>,
  jobs: readonly Run[],
  fanOuts: ReadonlyMap<string, FanOut>,
): Node[] {
  const roots: Node[] = [];
  const owner = new Map<string, Node>();
  const trunk = new Map<string, Node>();
  for (const thread of threads) {
    const leaves = branches.get(thread.thread_id) ?? [];
    const above = thread.parent_thread_id === null ? undefined : trunk.get(thread.parent_thread_id);
    if (leaves.length === 0) {
      const alone = node("thread", `thread ${thread.thread_id}`, thread, above ?? null, thread.forked_at_seq ?? 0);
      if (!above) roots.push(alone);
      trunk.set(thread.thread_id, alone);
      continue;
    }
    const ordered = [...leaves].sort((a, b) => Number(b.trunk) - Number(a.trunk) || (a.created_at < b.created_at ? -1 : 1));
    for (const branch of ordered) {
      let parent: Node | null = null;
      let seq = 0;
      let depth = branch.path.length - 1;
      while (depth >= 0) {
        const each = branch.path[depth];
        const found = each && owner.get(each.segment);
        if (each && found) {
          parent = found;
          seq = each.until_seq ?? Number.MAX_SAFE_INTEGER;
          break;
        }
        depth -= 1;
      }
      parent ??= trunk.get(thread.thread_id) ?? above ?? null;
      const made = node("leaf", `leaf ${thread.thread_id} ${branch.message_id}`, thread, parent, seq);
      made.branch = branch;
      if (parent === null) roots.push(made);
      for (const each of branch.path.slice(depth + 1)) owner.set(each.segment, made);
      if (!trunk.has(thread.thread_id)) trunk.set(thread.thread_id, made);
    }
  }
  for (const run of jobs) addJob(run, trunk.get(run.thread_id), fanOuts.get(run.run_id) ?? null);
  return roots;
}

function addJob(run: Run, trunk: Node | undefined, fanOut: FanOut | null): void {
  if (!trunk) return;
  const job = node("job", `job ${run.run_id}`, trunk.thread, trunk, Number.MAX_SAFE_INTEGER);
  job.run = run;
  job.fanOut = fanOut;
  for (const candidate of fanOut?.candidates ?? []) {
    const made = node("candidate", `candidate ${run.run_id} ${candidate.number}`, trunk.thread, job, candidate.number);
    Object.assign(made, { run, fanOut, candidate });
  }
  if (fanOut?.next) Object.assign(node("more", `more ${run.run_id}`, trunk.thread, job, Number.MAX_SAFE_INTEGER), { run, fanOut });
}

/** The rows of the tree from top to bottom, without those below folded nodes, and only those that fit if there is a filter. */
export function rows(roots: Node[], folded: ReadonlySet<string>, fits: ((node: Node) => boolean) | null): Row[] {
  const found: Row[] = [];
  const wanted = fits === null ? null : withAncestors(roots, fits);
  const stack: { node: Node; depth: number; lines: boolean[]; last: boolean }[] = [];
  const push = (nodes: Node[], depth: number, lines: boolean[]): void => {
    const shown = (wanted === null ? nodes : nodes.filter((each) => wanted.has(each))).sort((a, b) => a.seq - b.seq);
    for (let n = shown.length - 1; n >= 0; n--) stack.push({ node: shown[n] as Node, depth, lines, last: n === shown.length - 1 });
  };
  push(roots, 0, []);
  for (let top = stack.pop(); top !== undefined; top = stack.pop()) {
    const isFolded = wanted === null && folded.has(top.node.key);
    found.push({ ...top, folded: isFolded });
    if (!isFolded) push(top.node.children, top.depth + 1, top.depth === 0 ? [] : [...top.lines, !top.last]);
  }
  return found;
}

function withAncestors(roots: Node[], fits: (node: Node) => boolean): Set<Node> {
  const wanted = new Set<Node>();
  const todo = [...roots];
  for (let each = todo.pop(); each !== undefined; each = todo.pop()) {
    todo.push(...each.children);
    if (fits(each)) for (let up: Node | null = each; up !== null && !wanted.has(up); up = up.parent) wanted.add(up);
  }
  return wanted;
}

export interface Fork {
  /** The paths part after the last message with at most this number. */
  seq: number;
  leaves: Branch[];
}

/** Where the other leaves of a thread part from a path, the first fork first. */
export function forksOf(path: Branch, leaves: readonly Branch[]): Fork[] {
  if (path.path.length === 0) return []; // nobody knows where it parts from others
  const found = new Map<number, Map<string, Branch>>();
  for (const other of leaves) {
    if (other.message_id === path.message_id) continue;
    const parted = partsAt(path, other);
    if (parted === null) continue;
    const [seq, common] = parted;
    const at = found.get(seq) ?? new Map<string, Branch>();
    found.set(seq, at);
    const next = other.path[common + 1]?.segment ?? "";
    const before = at.get(next);
    // one leaf stands for all that go on together: the head, else the newest
    if (!before || other.head || (!before.head && other.created_at > before.created_at)) at.set(next, other);
  }
  return [...found].map(([seq, others]) => ({ seq, leaves: [...others.values()] })).sort((a, b) => a.seq - b.seq);
}

/** The branch that ends with the newest message of the head, of which nothing but this message is known. */
export function headOf(last: Message): Branch {
  const { id, seq, created_at, run_id, run_status } = last;
  return { message_id: id, depth: seq ?? 0, created_at: created_at ?? "", run_id, run_status, head: true, trunk: false, labels: [], path: [] };
}

/** The leaves without those that a run under way goes on from: its last message is a leaf, too. */
export function ends(leaves: Branch[]): Branch[] {
  const name = (each: Branch): string => each.path.map((part) => part.segment).join(" ");
  const passed = new Set(leaves.filter((each) => each.run_status === "running" || each.run_status === "suspended").map(name));
  return leaves.filter((each) => each.path.at(-1)?.until_seq !== null || each.head || each.labels.length > 0 || !passed.has(name(each)));
}

function partsAt(one: Branch, other: Branch): [number, number] | null {
  let common = -1;
  while (one.path[common + 1] && one.path[common + 1]?.segment === other.path[common + 1]?.segment) common += 1;
  if (common < 0) return [0, common];
  const limit = (each: Branch): number => each.path[common]?.until_seq ?? Number.MAX_SAFE_INTEGER;
  const seq = Math.min(limit(one), limit(other));
  return seq === Number.MAX_SAFE_INTEGER ? null : [seq, common];
}
