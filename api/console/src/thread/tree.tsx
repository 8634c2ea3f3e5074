/** The tree of the family as lanes. A row that comes into sight reads its leaves and a few words of its last message. */

import { signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { at, get } from "../api";
import { brief } from "../format";
import { go, href } from "../router";
import { textOf } from "../runs";
import type { Message } from "../types";
import { Age, Status } from "../ui/bits";
import { Icon } from "../ui/icons";
import { VirtualList } from "../ui/virtual";
import { type Node, type Row, rows } from "./lanes";
import { useModel } from "./page";

const HEIGHT = 34;
const STEP = 14;
const MOST_STEPS = 9;
const folded = signal<ReadonlySet<string>>(new Set());
const words = signal<ReadonlyMap<string, string>>(new Map());
const asked = new Set<string>();

export function Tree({ filter, onOpen }: { filter: RefObject<HTMLInputElement | null>; onOpen: () => void }) {
  const model = useModel();
  const [text, setText] = useState("");
  const [cursor, setCursor] = useState<string | null>(null);
  const tree = model.tree.value;
  const known = words.value;
  const shown = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    return rows(tree, folded.value, wanted === "" ? null : (each) => describes(each, known).includes(wanted));
  }, [tree, folded.value, text, text === "" ? null : known]);
  const path = model.path.value;
  const current = shown.findIndex(({ node }) => node.branch !== null && node.branch.message_id === path?.message_id && node.thread.thread_id === model.id);
  const at = cursor === null ? current : shown.findIndex(({ node }) => node.key === cursor);
  const active = useMemo(() => {
    const found = new Set<Node>();
    for (let up: Node | null = shown[current]?.node ?? null; up !== null; up = up.parent) found.add(up);
    return found;
  }, [shown, current]);
  useEffect(() => setCursor(null), [path?.message_id, model.id]);
  const open = (node: Node): void => {
    onOpen();
    openNode(node, model.id);
  };
  const keys = (event: KeyboardEvent): void => {
    const row = shown[at];
    const move = (index: number): void => {
      const next = shown[Math.max(0, Math.min(shown.length - 1, index))];
      if (next) setCursor(next.node.key);
    };
    if (event.key === "ArrowDown") move(at + 1);
    else if (event.key === "ArrowUp") move(at - 1);
    else if (event.key === "Home") move(0);
    else if (event.key === "End") move(shown.length - 1);
    else if (row && event.key === "ArrowLeft") {
      if (row.node.children.length > 0 && !row.folded) fold(row.node, true);
      else move(shown.findIndex(({ node }) => node === row.node.parent));
    } else if (row && event.key === "ArrowRight") {
      if (row.folded) fold(row.node, false);
      else move(at + 1);
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
          value={text}
          onInput={(e) => setText(e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === "Escape") {
              setText("");
              e.currentTarget.blur();
            }
            if (e.key === "ArrowDown") e.currentTarget.closest("aside")?.querySelector<HTMLElement>(".virtual")?.focus();
          }}
        />
      </div>
      <VirtualList
        items={shown}
        height={HEIGHT}
        label="Branches and forks"
        role="tree"
        show={at}
        active={at >= 0 ? `row-${at}` : undefined}
        onKeyDown={keys}
        row={(row, index) => <TreeRow key={row.node.key} row={row} index={index} current={index === current} cursor={index === at} active={active} open={open} />}
      />
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
    model.want(node.thread.thread_id);
    if (leaf !== null) readWords(node.thread.thread_id, leaf);
  }, [node.key, leaf]);
  const trunk = node.kind === "thread" || (node.branch !== null && node.branch.trunk);
  const said = leaf === null ? undefined : words.value.get(leaf);
  const status = statusOf(node);
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
        <span class={`tree-name${trunk ? " strong" : ""}`}>
          {node.kind === "candidate" ? (
            <span class={node.candidate?.failed ? "bad-text" : ""}>
              {node.candidate?.winner && <span class="winner" title="the judge's choice"><Icon name="check" size={12} /></span>}
              {brief(node.candidate?.text ?? "", 90)}
            </span>
          ) : node.kind === "job" ? (
            <>{node.run?.kind === "fork_many" ? `fan-out of ${node.children.length || "…"}` : "probe"} {brief(textOf(node.run?.input ?? null), 40)}</>
          ) : trunk ? (
            (node.thread.title ?? node.thread.thread_id)
          ) : (
            (said ?? "…")
          )}
        </span>
        {node.branch?.labels.map((label) => (
          <span class="chip label" key={label}>
            {label}
          </span>
        ))}
        {trunk && node.thread.agent && node.kind !== "job" && <span class="tree-agent">{node.thread.agent}</span>}
      </span>
      {status && <Status status={status} small />}
      <span class="tree-depth">{node.branch ? node.branch.depth : node.candidate ? "" : <Age at={node.run?.accepted_at ?? node.thread.created_at} />}</span>
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

/** The lines of a row: those of the lanes above that go on, the bend from the parent's lane, and the leaf's point. */
function Lanes({ row, active }: { row: Row; active: ReadonlySet<Node> }) {
  const depth = Math.min(row.depth, MOST_STEPS);
  const x = (n: number): number => 9 + n * STEP;
  const skipped = row.depth - depth;
  const middle = HEIGHT / 2;
  const here = active.has(row.node);
  return (
    <svg class="lanes" width={x(depth) + 9} height={HEIGHT} aria-hidden="true">
      {row.lines.slice(skipped).map((on, n) => (on && n < depth - (row.depth > 0 ? 0 : 0) ? <path key={n} d={`M${x(n)} 0V${HEIGHT}`} /> : null))}
      {depth > 0 && (
        <path class={here ? "on" : ""} d={`M${x(depth - 1)} 0V${middle - 8}Q${x(depth - 1)} ${middle} ${x(depth - 1) + 8} ${middle}H${x(depth)}`} />
      )}
      {depth > 0 && !row.last && <path d={`M${x(depth - 1)} 0V${HEIGHT}`} />}
      {row.node.children.length > 0 && !row.folded && <path d={`M${x(depth)} ${middle}V${HEIGHT}`} />}
      <circle class={`${here ? "on" : ""} k-${row.node.kind}`} cx={x(depth)} cy={middle} r={row.node.kind === "candidate" ? 2.5 : 3.5} />
    </svg>
  );
}

function statusOf(node: Node): string | null {
  const status = node.kind === "job" ? node.run?.status : node.branch?.run_status;
  return status && status !== "completed" ? status : null;
}

function describes(node: Node, known: ReadonlyMap<string, string>): string {
  const tags = Object.entries(node.thread.tags).map(([name, value]) => `${name}:${value}`);
  const own = [node.branch?.run_id, node.branch?.run_status, ...(node.branch?.labels ?? []), node.candidate?.text];
  const said = node.branch ? known.get(node.branch.message_id) : "";
  return [node.thread.thread_id, node.thread.title, node.thread.agent, ...tags, ...own, said].join(" ").toLowerCase();
}

export function openNode(node: Node, thread: string): void {
  if (node.kind === "job" || (node.kind === "candidate" && node.candidate?.thread_id === null)) {
    go(href(["threads", node.thread.thread_id], { run: node.run?.run_id ?? null }));
    return;
  }
  const target = node.kind === "candidate" ? (node.candidate?.thread_id as string) : node.thread.thread_id;
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
      words.value = new Map(words.value).set(message, brief(text || (call?.type === "tool_call" ? `${call.name}()` : found.role), 100));
    })
    .catch(() => asked.delete(message));
}
