/** All runs: search, filter, cancel and redrive, also many at once. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { AgentSelect } from "../agents";
import { at } from "../api";
import { brief, gist, seconds } from "../format";
import { go, href, place, setQuery } from "../router";
import { can } from "../session";
import type { Run, RunStatus } from "../types";
import { Age, Empty, Id, Problem, SearchEnd, Status } from "../ui/bits";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { usePaged } from "../ui/paged";
import { useTitle } from "../ui/title";
import { VirtualList } from "../ui/virtual";
import { promptOf, runTime } from "../runs";
import { Bulk, keyOf } from "./bulk";

const STATUSES: RunStatus[] = ["queued", "running", "suspended", "completed", "failed", "cancelled", "dead"];
const AGES: [string, string, number][] = [
  ["5m", "5 minutes", 300],
  ["1h", "hour", 3600],
  ["1d", "day", 86400],
  ["7d", "7 days", 604800],
];
const FILTERS = ["status", "agent", "queue", "thread", "error", "text", "age"];
/** Milliseconds after the last letter until a search begins. */
const TYPING = 250;

export function Runs() {
  useTitle("Runs");
  const query = place.value.query;
  const filter = (name: string): string | null => query.get(name);
  const within = AGES.find(([name]) => name === filter("age"))?.[2];
  const asked = { status: filter("status"), agent: filter("agent"), queue: filter("queue"), text: filter("text"), error: filter("error") };
  const path = filter("thread") ? at.thread(filter("thread") as string, "runs") : "v1/runs";
  // filters without an index: the API examines a limited number of runs for each page
  const searches = [asked.text, asked.queue, asked.error].some(Boolean);
  const list = usePaged<Run>(path, asked, keyOf, searches ? 10_000 : 2500, 100, within);
  const field = useRef<HTMLInputElement>(null);
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  useKeys({ "/": () => field.current?.focus(), Escape: () => setPicked(new Set()) });
  const chosen = useMemo(() => list.items.filter((each) => picked.has(keyOf(each))), [list.items, picked]);
  const toggle = (run: Run): void => {
    const next = new Set(picked);
    if (!next.delete(keyOf(run))) next.add(keyOf(run));
    setPicked(next);
  };
  const filters = FILTERS.flatMap((name) => (filter(name) ? [`${name} ${brief(filter(name) as string, 40)}`] : []));
  const filtered = filters.length > 0;
  const all = list.items.length > 0 && list.items.every((each) => picked.has(keyOf(each)));
  return (
    <section class="page">
      <header class="bar">
        <h1>Runs</h1>
        <div class="filters" role="search">
          <span class="search">
            <Icon name="search" />
            <Search field={field} />
          </span>
          <AgentSelect value={filter("agent") ?? ""} none="All agents" onChange={(name) => setQuery({ agent: name })} />
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
      {can("write") && <Bulk chosen={chosen} path={path} query={asked} within={within} filters={filters} clear={() => setPicked(new Set())} done={list.refresh} />}
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
        <span class="num">Duration</span>
        <span class="num">Age</span>
      </div>
      {list.items.length > 0 ? (
        <VirtualList
          items={list.items}
          height={48}
          label="Runs"
          of={keyOf}
          onLook={list.look}
          onEnd={searches ? undefined : list.more}
          row={(each) => <Row key={keyOf(each)} run={each} picked={picked.has(keyOf(each))} toggle={() => toggle(each)} />}
        />
      ) : (
        !list.loading &&
        list.error === null && (
          <Empty title={!list.ended ? "None found so far" : filtered ? "No run matches the filter" : "No runs yet"}>
            {filtered ? null : "A prompt starts a run. Send one in the playground, with runyard prompt, or through the API."}
          </Empty>
        )
      )}
      {searches && !list.loading && !list.ended && <SearchEnd what="The search stopped here. It did not examine older runs." more={list.more} />}
    </section>
  );
}

/** The field of the text. A search begins after the last letter. */
function Search({ field }: { field: { current: HTMLInputElement | null } }) {
  const asked = place.value.query.get("text") ?? "";
  const [text, setText] = useState(asked);
  const own = useRef(asked);
  const typing = useRef(0);
  useEffect(() => {
    if (asked === own.current) return;
    clearTimeout(typing.current);
    setText((own.current = asked));
  }, [asked]);
  useEffect(() => () => clearTimeout(typing.current), []);
  const typed = (value: string): void => {
    setText(value);
    clearTimeout(typing.current);
    typing.current = window.setTimeout(() => setQuery({ text: (own.current = value) }), TYPING);
  };
  return (
    <input
      ref={field}
      type="search"
      placeholder="Text of the prompt, run or thread id"
      aria-label="Text of the prompt, run or thread id"
      value={text}
      onInput={(e) => typed(e.currentTarget.value)}
    />
  );
}

function Text({ name, title }: { name: string; title: string }) {
  const asked = place.value.query.get(name) ?? "";
  const [text, setText] = useState(asked);
  useEffect(() => setText(asked), [asked]);
  return (
    <input
      class="short"
      placeholder={title}
      aria-label={title}
      value={text}
      onInput={(e) => setText(e.currentTarget.value)}
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
        <span class="row-title">{gist(promptOf(run), 140)}</span>
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
