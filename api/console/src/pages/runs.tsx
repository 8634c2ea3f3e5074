/** All runs: search, filter, cancel and redrive, also many at once. */

import { useMemo, useRef, useState } from "preact/hooks";
import { useAgents } from "../agents";
import { at, gather, post } from "../api";
import { brief, count, seconds } from "../format";
import { go, href, place, setQuery } from "../router";
import { can } from "../session";
import type { Run, RunStatus } from "../types";
import { Age, Button, Empty, Id, Problem, Status } from "../ui/bits";
import { ask, note } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { usePaged } from "../ui/paged";
import { VirtualList } from "../ui/virtual";
import { promptOf, runTime } from "../runs";

const STATUSES: RunStatus[] = ["queued", "running", "suspended", "completed", "failed", "cancelled", "dead"];
const CANCELLABLE = new Set(["queued", "running", "suspended"]);
const REDRIVABLE = new Set(["failed", "dead"]);
const AGES: [string, string, number][] = [
  ["5m", "5 minutes", 300],
  ["1h", "hour", 3600],
  ["1d", "day", 86400],
  ["7d", "7 days", 604800],
];
const MOST = 2000;
const AT_ONCE = 8;

export function keyOf(run: Run): string {
  return JSON.stringify([run.thread_id, run.run_id]);
}

export function Runs() {
  const query = place.value.query;
  const filter = (name: string): string | null => query.get(name);
  const within = AGES.find(([name]) => name === filter("age"))?.[2];
  // computed once, so that the list is not another one at every turn
  const since = useMemo(() => (within === undefined ? null : new Date(Date.now() - within * 1000).toISOString()), [within]);
  const asked = { status: filter("status"), agent: filter("agent"), queue: filter("queue"), text: filter("text"), error: filter("error"), since };
  const path = filter("thread") ? at.thread(filter("thread") as string, "runs") : "v1/runs";
  const list = usePaged<Run>(path, asked, keyOf, 2500);
  const agents = useAgents();
  const field = useRef<HTMLInputElement>(null);
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  useKeys({ "/": () => field.current?.focus(), Escape: () => setPicked(new Set()) });
  const chosen = useMemo(() => list.items.filter((each) => picked.has(keyOf(each))), [list.items, picked]);
  const toggle = (run: Run): void => {
    const next = new Set(picked);
    if (!next.delete(keyOf(run))) next.add(keyOf(run));
    setPicked(next);
  };
  const all = list.items.length > 0 && list.items.every((each) => picked.has(keyOf(each)));
  return (
    <section class="page">
      <header class="bar">
        <h1>Runs</h1>
        <div class="filters" role="search">
          <span class="search">
            <Icon name="search" />
            <input
              ref={field}
              type="search"
              placeholder="Text of the prompt, run or thread id"
              aria-label="Text of the prompt, run or thread id"
              value={filter("text") ?? ""}
              onInput={(e) => setQuery({ text: e.currentTarget.value })}
            />
          </span>
          <select aria-label="Agent" value={filter("agent") ?? ""} onChange={(e) => setQuery({ agent: e.currentTarget.value })}>
            <option value="">All agents</option>
            {agents.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
          <select aria-label="Age" value={filter("age") ?? ""} onChange={(e) => setQuery({ age: e.currentTarget.value })}>
            <option value="">Any age</option>
            {AGES.map(([name, title]) => (
              <option key={name} value={name}>
                Last {title}
              </option>
            ))}
          </select>
          <Text name="queue" title="Queue" />
          <Text name="thread" title="Thread" />
          <Text name="error" title="Error code" />
        </div>
      </header>
      <div class="status-bar" role="group" aria-label="Status">
        <button type="button" aria-pressed={asked.status === null} onClick={() => setQuery({ status: null })}>
          All
        </button>
        {STATUSES.map((each) => (
          <button type="button" key={each} aria-pressed={asked.status === each} onClick={() => setQuery({ status: asked.status === each ? null : each })}>
            <Status status={each} />
          </button>
        ))}
      </div>
      {list.error !== null && <Problem error={list.error} />}
      {can("write") && <Bulk chosen={chosen} path={path} query={asked} clear={() => setPicked(new Set())} done={list.refresh} />}
      <div class="table-head runs-row">
        {can("write") ? (
          <input
            type="checkbox"
            aria-label="Select all shown"
            checked={all}
            onChange={() => setPicked(all ? new Set() : new Set(list.items.map(keyOf)))}
          />
        ) : (
          <span />
        )}
        <span>Status</span>
        <span>Run</span>
        <span class="wide">Agent</span>
        <span class="wide">Queue</span>
        <span class="num wide">Attempt</span>
        <span class="num">Took</span>
        <span class="num">Age</span>
      </div>
      {list.items.length > 0 ? (
        <VirtualList
          items={list.items}
          height={48}
          label="Runs"
          onEnd={list.more}
          row={(each) => <Row key={keyOf(each)} run={each} picked={picked.has(keyOf(each))} toggle={() => toggle(each)} />}
        />
      ) : (
        !list.loading && <Empty title={list.ended ? "No run fits the filter" : "None found so far"}>{!list.ended && <Button onClick={list.more}>Search further</Button>}</Empty>
      )}
    </section>
  );
}

function Text({ name, title }: { name: string; title: string }) {
  return (
    <input
      class="short"
      placeholder={title}
      aria-label={title}
      defaultValue={place.value.query.get(name) ?? ""}
      onChange={(e) => setQuery({ [name]: e.currentTarget.value.trim() })}
    />
  );
}

function Row({ run, picked, toggle }: { run: Run; picked: boolean; toggle: () => void }) {
  const to = href(["threads", run.thread_id], { run: run.run_id });
  return (
    <div role="listitem" class={`row runs-row${picked ? " picked" : ""}`} onDblClick={() => go(to)}>
      {can("write") ? <input type="checkbox" aria-label={`Select run ${run.run_id}`} checked={picked} onChange={toggle} /> : <span />}
      <Status status={run.status} />
      <a class="two-lines" href={to}>
        <span class="row-title">{brief(promptOf(run), 140)}</span>
        <span class="row-sub">
          <span>{brief(run.thread_id, 40)}</span>
          <Id value={run.run_id} />
          {run.error && <span class="bad-text">{brief(`${run.error.code}: ${run.error.message}`, 80)}</span>}
        </span>
      </a>
      <span class="dim wide">{run.agent ?? "default"}</span>
      <span class="dim wide">{run.queue}</span>
      <span class="num dim wide">{run.attempt}</span>
      <span class="num dim">{seconds(runTime(run))}</span>
      <span class="num dim">
        <Age at={run.accepted_at} />
      </span>
    </div>
  );
}

interface BulkProps {
  chosen: Run[];
  path: string;
  query: Record<string, string | null>;
  clear: () => void;
  done: () => Promise<void>;
}

/** The actions on the selected runs, or on all that fit the filter. Each says how many before it does anything. */
function Bulk({ chosen, path, query, clear, done }: BulkProps) {
  const act = async (verb: "cancel" | "redrive", runs: Run[]): Promise<void> => {
    const fit = runs.filter((each) => (verb === "cancel" ? CANCELLABLE : REDRIVABLE).has(each.status));
    if (fit.length === 0) {
      note(verb === "cancel" ? "None of them can be cancelled: all have ended" : "None of them can be redriven: none has failed or died", true);
      return;
    }
    const left = runs.length - fit.length;
    const others = left > 0 ? ` ${count(left, "other run")} stay${left === 1 ? "s" : ""} as ${left === 1 ? "it is" : "they are"}.` : "";
    ask({
      title: `${verb === "cancel" ? "Cancel" : "Redrive"} ${count(fit.length, "run")}?`,
      body: (
        <p>
          {verb === "cancel" ? "They stop within about a second and store nothing more." : "They are queued again, and continue after their stored messages."}
          {others}
          {runs.length >= MOST && ` Only the newest ${MOST.toLocaleString("en")} were looked at.`}
        </p>
      ),
      confirm: `${verb === "cancel" ? "Cancel" : "Redrive"} ${count(fit.length, "run")}`,
      danger: verb === "cancel",
      act: async () => {
        const failed = await each(fit, (run) => post(at.run(run.thread_id, run.run_id, verb)));
        note(`${verb === "cancel" ? "Cancelled" : "Redriven"}: ${fit.length - failed} of ${fit.length}`, failed > 0);
        clear();
        await done();
      },
    });
  };
  const allOf = async (verb: "cancel" | "redrive"): Promise<void> => act(verb, await gather<Run>(path, query, MOST));
  const filtered = Object.values(query).some((value) => value !== null && value !== "");
  return (
    <div class="bulk">
      {chosen.length > 0 ? (
        <>
          <span>{count(chosen.length, "run")} selected</span>
          <Button icon="again" onClick={() => act("redrive", chosen)}>
            Redrive
          </Button>
          <Button icon="stop" onClick={() => act("cancel", chosen)}>
            Cancel
          </Button>
          <Button kind="quiet" onClick={clear}>
            Clear
          </Button>
        </>
      ) : (
        <>
          <span class="dim">{filtered ? "All that fit the filter:" : "All runs:"}</span>
          <Button kind="quiet" icon="again" onClick={() => allOf("redrive")}>
            Redrive all…
          </Button>
          <Button kind="quiet" icon="stop" onClick={() => allOf("cancel")}>
            Cancel all…
          </Button>
        </>
      )}
    </div>
  );
}

/** Do something with each run, a few at once. Returns for how many it failed. */
async function each(runs: Run[], act: (run: Run) => Promise<unknown>): Promise<number> {
  let failed = 0;
  const left = [...runs];
  const turn = async (): Promise<void> => {
    for (let run = left.shift(); run !== undefined; run = left.shift()) {
      await act(run).catch(() => (failed += 1));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, turn));
  return failed;
}
