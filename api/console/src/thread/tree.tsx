/** The tree of the family as lanes. A row that comes into sight reads its leaves and a few words of its last message. */

import { signal, useComputed, useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect } from "preact/hooks";
import { at, get } from "../api";
import { brief, count, gist } from "../format";
import { go, href, place } from "../router";
import { textOf } from "../runs";
import type { Message, Run } from "../types";
import { Age, MoreTags, Status } from "../ui/bits";
import { attempt } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { VirtualList } from "../ui/virtual";
import { type Node, type Row, rows } from "./lanes";
import type { ThreadModel } from "./model";
import { show, useModel } from "./page";
import { HEAD, RUNS } from "./runs";

const HEIGHT = 34;
const STEP = 14;
const MOST_STEPS = 9;
const folded = signal<ReadonlySet<string>>(new Set());
const words = signal<ReadonlyMap<string, string>>(new Map());
const asked = new Set<string>();

export function Tree({ filter }: { filter: RefObject<HTMLInputElement | null> }) {
  const model = useModel();
  // signals, not states: keys that follow one another quickly see what the last one did
  const text = useSignal("");
  const cursor = useSignal<Node | null>(null);
  const shown = useComputed(() => {
    const wanted = text.value.trim().toLowerCase();
    return rows(model.tree.value, folded.value, wanted === "" ? null : (each) => describes(each, words.value).includes(wanted));
  });
  const current = useComputed(() => {
    const leaf = model.path.value?.message_id;
    return shown.value.findIndex(({ node }) => node.branch !== null && node.branch.message_id === leaf && node.thread.thread_id === model.id);
  });
  const at = useComputed(() => (cursor.value === null ? current.value : rowOf(cursor.value, shown.value)));
  const active = useComputed(() => {
    const found = new Set<Node>();
    for (let up: Node | null = shown.value[current.value]?.node ?? null; up !== null; up = up.parent) found.add(up);
    return found;
  });
  const leaf = place.value.query.get("leaf");
  useEffect(() => void (cursor.value = null), [model, leaf]);
  const open = (node: Node): void => {
    if (node.kind === "more") return void attempt(() => model.family.moreCandidates(node.run as Run));
    openNode(node, model.id);
    show(leadsToRun(node) ? "details" : "path");
  };
  const keys = (event: KeyboardEvent): void => {
    const all = shown.value;
    const row = all[at.value];
    const move = (index: number): void => {
      const next = all[Math.max(0, Math.min(all.length - 1, index))];
      if (next) cursor.value = next.node;
    };
    if (event.key === "ArrowDown") move(at.value + 1);
    else if (event.key === "ArrowUp") move(at.value - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(all.length - 1);
    else if (row && event.key === "ArrowLeft") {
      if (row.node.children.length > 0 && !row.folded) fold(row.node, true);
      else move(all.findIndex(({ node }) => node === row.node.parent));
    } else if (row && event.key === "ArrowRight") {
      if (row.folded) fold(row.node, false);
      else move(at.value + 1);
    } else if (row && (event.key === "Enter" || event.key === " ")) open(row.node);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <div class="tree-filter search">
        <Icon name="search" />
        <input
          ref={filter}
          type="search"
          placeholder="Filter the tree ( / )"
          aria-label="Filter the tree"
          value={text.value}
          onInput={(e) => (text.value = e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === "Escape") {
              text.value = "";
              e.currentTarget.blur();
            }
            if (e.key === "ArrowDown") e.currentTarget.closest("aside")?.querySelector<HTMLElement>(".virtual")?.focus();
          }}
        />
      </div>
      <VirtualList
        items={shown.value}
        height={HEIGHT}
        label="Branches and forks"
        role="tree"
        show={at.value}
        active={at.value >= 0 ? `row-${at.value}` : undefined}
        onKeyDown={keys}
        row={(row, index) => (
          <TreeRow key={row.node.key} row={row} index={index} current={index === current.value} cursor={index === at.value} active={active.value} open={open} />
        )}
      />
      <NotShown />
    </>
  );
}

/** The row of a node. A leaf that has grown, and a thread whose leaves were read since, are other nodes: then the row of the same
 *  branch, else the first one of the thread. */
function rowOf(wanted: Node, shown: Row[]): number {
  const segment = segmentOf(wanted);
  const ways: ((node: Node) => boolean)[] = [
    (node) => node.key === wanted.key,
    (node) => segment !== undefined && segmentOf(node) === segment,
    (node) => node.thread.thread_id === wanted.thread.thread_id,
  ];
  return ways.map((fits) => shown.findIndex(({ node }) => fits(node))).find((index) => index >= 0) ?? -1;
}

/** The last segment of a branch, to which its next message belongs. */
function segmentOf(node: Node): string | undefined {
  return node.branch?.path.at(-1)?.segment;
}

/** What the tree does not show. */
function NotShown() {
  const model = useModel();
  const found = [...model.family.bounds.value];
  return (
    <>
      {found.map(([name, text]) => (
        <p class="bound" key={name}>
          {text}
        </p>
      ))}
      {model.moreRuns.value && (
        <p class="bound">
          The page has read only the newest {RUNS} runs of the thread. <a href={href(["runs"], { thread: model.id })}>All runs</a>
        </p>
      )}
    </>
  );
}

interface RowProps {
  row: Row;
  index: number;
  current: boolean;
  cursor: boolean;
  active: ReadonlySet<Node>;
  open: (node: Node) => void;
}

function TreeRow({ row, index, current, cursor, active, open }: RowProps) {
  const model = useModel();
  const { node } = row;
  const leaf = node.branch?.message_id ?? null;
  useEffect(() => {
    if (leaf !== null) readWords(node.thread.thread_id, leaf);
    if (node.kind === "job" && node.run?.kind === "fork_many") model.family.wantFanOut(node.run);
    return model.family.look(node.thread.thread_id);
  }, [node.key, leaf]);
  const trunk = node.kind === "thread" || (node.kind === "leaf" && node.branch?.trunk === true);
  const status = statusOf(node);
  const waiting = queuedBehind(model, node);
  return (
    <div
      role="treeitem"
      id={`row-${index}`}
      aria-level={row.depth + 1}
      aria-selected={current}
      aria-expanded={node.children.length > 0 ? !row.folded : undefined}
      class={`tree-row${current ? " current" : ""}${cursor ? " cursor" : ""}${active.has(node) ? " active" : ""}`}
      onClick={() => open(node)}
    >
      <Lanes row={row} active={active} />
      <span class="tree-text">
        <span class="tree-title">
          <span class={`tree-name${trunk ? " strong" : ""}`}>
            <Name node={node} />
          </span>
          {node.branch?.labels.map((label) => (
            <span class="chip label" key={label}>
              {label}
            </span>
          ))}
        </span>
        {trunk && <Tags tags={node.thread.tags} />}
        {trunk && node.thread.agent && <span class="tree-agent">{node.thread.agent}</span>}
      </span>
      {waiting > 0 && (
        <span class="chip warn" title={count(waiting, "queued prompt")}>
          +{waiting}
        </span>
      )}
      {status && <Status status={status} small />}
      <span class="tree-depth">{node.branch ? node.branch.depth : node.candidate || node.kind === "more" ? "" : <Age at={node.run?.accepted_at ?? node.thread.created_at} />}</span>
      {node.children.length > 0 && (
        <button
          type="button"
          class="tree-fold"
          tabIndex={-1}
          aria-label={row.folded ? `Unfold ${node.children.length}` : "Fold"}
          onClick={(event) => {
            event.stopPropagation();
            fold(node, !row.folded);
          }}
        >
          {row.folded ? node.children.length : <Icon name="down" size={12} />}
        </button>
      )}
    </div>
  );
}

function Name({ node }: { node: Node }) {
  const { candidate, fanOut, run, branch, thread } = node;
  if (candidate) {
    const text = candidate.text || candidate.error?.message || candidate.status;
    return (
      <span class={candidate.status === "failed" ? "bad-text" : ""}>
        {fanOut?.winner === candidate.number && (
          <span class="winner" title="the choice of the judge">
            <Icon name="check" size={12} />
          </span>
        )}
        {gist(text, 90)}
      </span>
    );
  }
  if (node.kind === "more") return <>more candidates, {(fanOut?.progress.total ?? 0) - (fanOut?.candidates.length ?? 0)} left</>;
  if (node.kind === "job") {
    const prompt = gist(textOf(run?.input ?? null), 40);
    if (run?.kind !== "fork_many") return <>probe {prompt}</>;
    const all = fanOut?.progress;
    const ended = all ? all.completed + all.failed + all.cancelled : 0;
    return <>fan-out {all ? (ended < all.total ? `${ended} of ${all.total}` : `of ${all.total}`) : ""} {prompt}</>;
  }
  if (node.kind === "thread" || branch?.trunk) return <>{brief(thread.title ?? thread.thread_id, 200)}</>;
  return <>{words.value.get(branch?.message_id ?? "") ?? "…"}</>;
}

const MOST_TAGS = 2;

function Tags({ tags }: { tags: Record<string, string> }) {
  const all = Object.entries(tags).filter(([name]) => name !== "title");
  return (
    <>
      {all.slice(0, MOST_TAGS).map(([name, value]) => (
        <span class="chip" key={name} title={`${name}:${value}`}>
          {brief(`${name}:${value}`, 24)}
        </span>
      ))}
      <MoreTags tags={all.slice(MOST_TAGS)} />
    </>
  );
}

/** The lines of a row: those of the lanes above that go on, the bend from the parent's lane, and the leaf's point. */
function Lanes({ row, active }: { row: Row; active: ReadonlySet<Node> }) {
  const depth = Math.min(row.depth, MOST_STEPS);
  const x = (n: number): number => 9 + n * STEP;
  const skipped = row.depth - depth;
  const middle = HEIGHT / 2;
  const here = active.has(row.node);
  return (
    <svg class="lanes" width={x(depth) + 9} height={HEIGHT} aria-hidden="true">
      {row.lines.slice(skipped).map((on, n) => (on && n < depth ? <path key={n} d={`M${x(n)} 0V${HEIGHT}`} /> : null))}
      {depth > 0 && (
        <path class={here ? "on" : ""} d={`M${x(depth - 1)} 0V${middle - 8}Q${x(depth - 1)} ${middle} ${x(depth - 1) + 8} ${middle}H${x(depth)}`} />
      )}
      {depth > 0 && !row.last && <path d={`M${x(depth - 1)} 0V${HEIGHT}`} />}
      {row.node.children.length > 0 && !row.folded && <path d={`M${x(depth)} ${middle}V${HEIGHT}`} />}
      <circle class={`${here ? "on" : ""} k-${row.node.kind}`} cx={x(depth)} cy={middle} r={row.node.kind === "candidate" ? 2.5 : 3.5} />
    </svg>
  );
}

/** How many prompts wait behind the leaf of a row, which must be of the shown thread. */
function queuedBehind(model: ThreadModel, node: Node): number {
  if (node.thread.thread_id !== model.id || (node.kind !== "leaf" && node.kind !== "thread")) return 0;
  const behindHead = node.branch === null || node.branch.head ? (model.queued.value.get(HEAD) ?? 0) : 0;
  return behindHead + (node.branch ? (model.queued.value.get(node.branch.message_id) ?? 0) : 0);
}

function statusOf(node: Node): string | null {
  const parked = node.candidate?.status === "parked" ? "suspended" : node.candidate?.status;
  const status = node.kind === "job" ? node.run?.status : (parked ?? node.branch?.run_status);
  return status && status !== "completed" ? status : null;
}

function describes(node: Node, known: ReadonlyMap<string, string>): string {
  const tags = Object.entries(node.thread.tags).map(([name, value]) => `${name}:${value}`);
  const own = [node.branch?.run_id, node.branch?.run_status, ...(node.branch?.labels ?? []), node.candidate?.text];
  const said = node.branch ? known.get(node.branch.message_id) : "";
  return [node.thread.thread_id, node.thread.title, node.thread.agent, ...tags, ...own, said].join(" ").toLowerCase();
}

function leadsToRun(node: Node): boolean {
  return node.kind === "job" || node.candidate?.thread_id === null;
}

export function openNode(node: Node, thread: string): void {
  if (leadsToRun(node)) {
    go(href(["threads", node.thread.thread_id], { run: node.run?.run_id ?? null }));
    return;
  }
  const target = node.candidate?.thread_id ?? node.thread.thread_id;
  const leaf = node.branch && !node.branch.head ? node.branch.message_id : null;
  go(href(["threads", target], { leaf: target === thread || leaf !== null ? leaf : null }));
}

function fold(node: Node, on: boolean): void {
  const next = new Set(folded.value);
  if (on) next.add(node.key);
  else next.delete(node.key);
  folded.value = next;
}

function readWords(thread: string, message: string): void {
  if (asked.has(message)) return;
  asked.add(message);
  get<Message>(at.thread(thread, "messages", message))
    .then((found) => {
      const text = textOf(found);
      const call = found.content.find((part) => part.type === "tool_call");
      words.value = new Map(words.value).set(message, gist(text || (call?.type === "tool_call" ? `${call.name}()` : found.role), 100));
    })
    .catch(() => asked.delete(message));
}
