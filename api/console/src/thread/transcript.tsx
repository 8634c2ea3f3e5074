/** The chosen path: messages grouped by run, the newest at the end, older ones read as somebody scrolls up. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { brief, count } from "../format";
import { go, href, page } from "../router";
import { can } from "../session";
import { isLive, promptOf } from "../runs";
import type { Attempt, Branch, Message, Run } from "../types";
import { Boundary, Button, Empty, Id, Problem, Status } from "../ui/bits";
import { Icon } from "../ui/icons";
import { cancel } from "./actions";
import type { Fork } from "./lanes";
import { LiveView, MessageView } from "./message";
import type { ThreadModel } from "./model";
import { select, useModel } from "./page";
import type { Chunk } from "./path";
import { Requests } from "./requests";
import type { Selection } from "./target";

/** Most runs without an answer that are shown. The list of runs has all. */
const MOST_UNANSWERED = 3;

export function Transcript() {
  const model = useModel();
  const box = useRef<HTMLDivElement>(null);
  const stuck = useRef(true);
  const chunks = model.chunks.value;
  const writing = model.writing.value;
  const shown = model.messages.value;
  const last = shown.at(-1);
  const onPath = useMemo(() => new Set(shown.map((each) => each.run_id)), [shown]);
  const selected = model.selection.value;

  // stay at the end while it grows, unless somebody has scrolled away from it; another path is shown from its end
  useLayoutEffect(() => {
    if (model.loading.value) stuck.current = true;
    if (stuck.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [last?.id, writing, model.requests.value, model.loading.value]);
  useEffect(() => {
    if (selected === null || model.loading.value) return;
    if (shown.some((each) => selected.id === (selected.kind === "run" ? each.run_id : each.id))) stuck.current = false;
    return scrollTo(selected, chunks);
  }, [selected?.id, model.loading.value, model.revealed.value]);

  const scroll = (): void => {
    const element = box.current;
    if (!element || model.loading.value) return;
    stuck.current = element.scrollTop + element.clientHeight > element.scrollHeight - 60;
    if (element.scrollTop < 1500 && model.older.value !== null && model.refused.value === null) void older(model, element);
  };
  const ended = model.forks.value.filter((fork) => fork.seq >= (last?.seq ?? 0));
  const live = [...writing.messages.values()].filter((each) => onPath.has(each.run_id));
  const tools = [...writing.tools.values()].filter((each) => onPath.has(each.run_id));
  // which runs have no messages on the path is known when the path was read
  const unanswered = model.loading.value ? [] : model.unanswered.value;
  const waiting = model.loading.value ? [] : model.live.value.filter((run) => run.kind === "prompt" && (run.status === "queued" || !onPath.has(run.run_id)));
  return (
    <div class="transcript" ref={box} onScroll={scroll} tabIndex={0} aria-label="Transcript" role="log" aria-live="off">
      {model.older.value !== null && (
        <div class="older">
          {model.refused.value !== null && <Problem error={`Older messages could not be read: ${model.refused.value.message}`} />}
          <Button kind="quiet" onClick={() => box.current && older(model, box.current)}>
            Older messages
          </Button>
        </div>
      )}
      {chunks.map((chunk, n) => (
        <ChunkView key={chunk.key} chunk={chunk} before={chunks[n - 1]?.messages.at(-1)} box={box} />
      ))}
      {model.failure.value !== null && (
        <div class="broken">
          <Problem error={model.failure.value} />
          <Button onClick={() => model.again()}>Try again</Button>
        </div>
      )}
      {model.failure.value === null && model.lost.value !== null && (
        <div class="broken">
          <Problem error={model.lost.value.says} />
          <Button onClick={model.lost.value.again}>Try again</Button>
        </div>
      )}
      {live.map((each) => (
        <LiveView key={each.id} message={each} />
      ))}
      {tools.map((each) => (
        <p key={each.call_id} class="running-tool">
          <span class="spinner" aria-hidden="true" /> {each.name} runs
        </p>
      ))}
      {model.gaps.value > 0 && <p class="mark gap">Events were lost here. The messages were read again.</p>}
      <Requests />
      {unanswered.length > MOST_UNANSWERED && (
        <p class="mark">
          {count(unanswered.length - MOST_UNANSWERED, "earlier prompt")} ended without an answer.
          <a class="link" href={href(["runs"], { thread: model.id })}>
            all runs
          </a>
        </p>
      )}
      {unanswered.slice(0, MOST_UNANSWERED).reverse().map((run) => (
        <RunBeside key={run.run_id} run={run} />
      ))}
      {waiting.map((run) => (
        <RunBeside key={run.run_id} run={run} />
      ))}
      {model.cut.value && (
        <p class="mark">
          The path continues after this message.
          <Button kind="quiet" onClick={() => model.showEnd()}>
            Show its end
          </Button>
        </p>
      )}
      {ended.map((fork) => (
        <Continuations key={fork.seq} fork={fork} />
      ))}
      {!model.loading.value && model.failure.value === null && shown.length === 0 && waiting.length === 0 && unanswered.length === 0 && <Empty title="No messages yet">The first prompt starts a run.</Empty>}
    </div>
  );
}

/** Most frames until a page of messages that comes into sight is drawn. */
const MOST_FRAMES = 30;

/** Scroll to a message or to the head of a run. Its page may be far from sight, and then holds no elements. Returns what ends this. */
function scrollTo(selected: Selection, chunks: Chunk[]): () => void {
  const name = `${selected.kind === "message" ? "m" : "r"}-${selected.id}`;
  const chunk = chunks.find((each) => each.messages.some((one) => selected.id === (selected.kind === "run" ? one.run_id : one.id)));
  let frames = 0;
  let next = 0;
  const step = (): void => {
    const element = document.getElementById(name);
    if (element) return element.scrollIntoView({ block: "nearest" });
    if (chunk === undefined || ++frames > MOST_FRAMES) return;
    if (frames === 1) document.getElementById(`c-${chunk.key}`)?.scrollIntoView({ block: "center" });
    next = requestAnimationFrame(step);
  };
  step();
  return () => cancelAnimationFrame(next);
}

/** Read a page of older messages. If this fails, the button stays. */
async function older(model: ThreadModel, box: HTMLElement): Promise<void> {
  const height = box.scrollHeight;
  const top = box.scrollTop;
  if (!(await model.readOlder())) return;
  requestAnimationFrame(() => {
    // browsers without scroll anchoring
    if (box.scrollTop === top && box.scrollHeight > height && top < 10) box.scrollTop = top + box.scrollHeight - height;
  });
}

/** A page of messages. Far from sight it is an empty box of the same height: the page holds few elements however long the path. */
function ChunkView({ chunk, before, box }: { chunk: Chunk; before: Message | undefined; box: { current: HTMLElement | null } }) {
  const model = useModel();
  const element = useRef<HTMLDivElement>(null);
  const [near, setNear] = useState(true);
  const height = useRef(0);
  useEffect(() => {
    if (!element.current) return;
    const watch = new IntersectionObserver(
      ([entry]) => {
        if (!entry) return;
        if (!entry.isIntersecting && element.current) height.current = element.current.offsetHeight;
        setNear(entry.isIntersecting);
      },
      { root: box.current, rootMargin: "2500px 0px" },
    );
    watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => (near ? model.look(chunk.key, chunk.messages) : undefined), [model, near, chunk.key, chunk.messages]);
  if (!near) return <div class="chunk" id={`c-${chunk.key}`} ref={element} style={{ height: `${height.current}px` }} />;
  const selected = model.selection.value;
  const forks = model.forks.value;
  let previous = before;
  return (
    <div class="chunk" id={`c-${chunk.key}`} ref={element}>
      {chunk.messages.map((message) => {
        const from = previous;
        previous = message;
        const fork = from ? forks.find((each) => each.seq >= (from.seq ?? 0) && each.seq < (message.seq ?? 0)) : forks.find((each) => model.older.value === null && each.seq < (message.seq ?? 0));
        return (
          <div key={message.id}>
            {message.run_id !== null && message.run_id !== from?.run_id && <RunHead message={message} selected={selected?.kind === "run" && selected.id === message.run_id} />}
            <Rewinds message={message} before={from} />
            {fork && <Siblings fork={fork} />}
            <Boundary>
              <MessageView message={message} results={model.results.value} beside={model.beside.value} selected={selected?.kind === "message" && selected.id === message.id} />
            </Boundary>
          </div>
        );
      })}
    </div>
  );
}

function RunHead({ message, selected }: { message: Message; selected: boolean }) {
  const model = useModel();
  const id = message.run_id as string;
  const run = model.runs.value.get(id);
  const status = run?.status ?? message.run_status ?? "completed";
  return (
    <div class={`run-head${selected ? " selected" : ""}`} id={`r-${id}`}>
      <button type="button" class="run-link" onClick={() => select({ kind: "run", id })}>
        <span class="hidden-text">Run</span>
        <Status status={status} />
        <Id value={id} />
        {run && run.attempt > 1 && <span class="chip">attempt {run.attempt}</span>}
        {run?.agent && <span class="dim">{run.agent}</span>}
      </button>
      {run && can("write") && (status === "running" || status === "suspended") && (
        <Button kind="quiet" icon="stop" onClick={() => cancel(run)}>
          Cancel
        </Button>
      )}
    </div>
  );
}

/** Marks between two messages of a run: another attempt went on here, after a crash, an error or a release. */
function Rewinds({ message, before }: { message: Message; before: Message | undefined }) {
  const model = useModel();
  const attempts = message.run_id === null ? undefined : model.attempts.value.get(message.run_id);
  if (!attempts || before?.run_id !== message.run_id) return null;
  const from = Date.parse(before?.created_at ?? "");
  const to = Date.parse(message.created_at ?? "");
  const marks = attempts.slice(1).filter((each, n) => {
    const at = Date.parse(each.started_at ?? "");
    return at >= from && at < to && attempts[n]?.outcome !== "suspended";
  });
  return (
    <>
      {marks.map((each) => (
        <Rewound key={each.fence} attempt={each} before={attempts[attempts.indexOf(each) - 1]} />
      ))}
    </>
  );
}

function Rewound({ attempt, before }: { attempt: Attempt; before: Attempt | undefined }) {
  return (
    <p class="mark rewound">
      <Icon name="again" size={12} />
      <span>{whyAgain(before, attempt.worker_id ?? "another worker")}</span>
    </p>
  );
}

/** Why another attempt of a run began. Only the run of a dead worker is taken over. */
function whyAgain(before: Attempt | undefined, worker: string): string {
  const error = before?.error ? `${before.error.code}: ${brief(before.error.message, 160)}` : "an error";
  if (before?.outcome === "lost") return `The worker died. Taken over by ${worker}`;
  if (before?.outcome === "released") return `The worker released the run. Continued by ${worker}`;
  if (before?.outcome === "retried") return `Retried after ${error}`;
  return `Redriven after ${error}`;
}

function Siblings({ fork }: { fork: Fork }) {
  const model = useModel();
  const own = model.path.value;
  const all = [...fork.leaves, ...(own ? [own] : [])].sort((a, b) => (a.created_at < b.created_at ? -1 : 1));
  const index = own ? all.indexOf(own) : -1;
  const to = (step: number): Branch | undefined => all[index + step];
  const beside = to(-1) ?? to(1);
  return (
    <nav class="siblings" aria-label="Branches at this message">
      <Button kind="quiet" icon="left" label="Branch before" disabled={!to(-1)} onClick={() => show(model, to(-1))} />
      <span>
        {index + 1} of {all.length}
      </span>
      <Button kind="quiet" icon="right" label="Branch after" disabled={!to(1)} onClick={() => show(model, to(1))} />
      {own && beside && (
        <a
          class="link"
          href={href(["playground"], { thread: model.id, leaf: own.message_id, other: model.id, other_leaf: beside.message_id, view: "diff" })}
        >
          compare
        </a>
      )}
    </nav>
  );
}

function show(model: ThreadModel, leaf: Branch | undefined): void {
  if (leaf) model.to(leaf.head ? null : leaf.message_id);
}

function Continuations({ fork }: { fork: Fork }) {
  const model = useModel();
  return (
    <p class="mark">
      Other branches from here:
      {fork.leaves.slice(0, 8).map((leaf, n) => (
        <button type="button" class="link" key={leaf.message_id} onClick={() => show(model, leaf)}>
          {leaf.labels[0] ?? (leaf.head ? "head" : `branch ${n + 1}`)}
        </button>
      ))}
      {fork.leaves.length > 8 && <span>and {fork.leaves.length - 8} more</span>}
    </p>
  );
}

/** A run without messages on the path: it waits for its turn, or it ended without an answer. */
function RunBeside({ run }: { run: Run }) {
  const model = useModel();
  const open = (): void => {
    if (run.thread_id === model.id && page.value === "threads") select({ kind: "run", id: run.run_id });
    else go(href(["threads", run.thread_id], { run: run.run_id }));
  };
  return (
    <div class="run-beside">
      <Status status={run.status} />
      <button type="button" class="link" onClick={open}>
        {promptOf(run)}
      </button>
      {run.error && <span class="dim">{brief(run.error.message, 160)}</span>}
      <span class="spacer" />
      {can("write") && isLive(run) && (
        <Button kind="quiet" icon="stop" onClick={() => cancel(run)}>
          Cancel
        </Button>
      )}
    </div>
  );
}
