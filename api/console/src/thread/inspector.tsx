/** What is known of the selected run, message or request. */

import { useEffect, useRef, useState } from "preact/hooks";
import { at, get } from "../api";
import { clock, count, money, moment, seconds, tokens } from "../format";
import { href, place } from "../router";
import { RequestDetail } from "../pages/inbox";
import { isLive } from "../runs";
import { can } from "../session";
import type { Attempt, HitlRequest, Message, Run } from "../types";
import { Age, Bound, Button, Empty, Field, Fold, Id, Problem, Status, Tabs } from "../ui/bits";
import { attempt } from "../ui/dialog";
import { useLive } from "../ui/live";
import { Code } from "../ui/long";
import { cancel, redrive } from "./actions";
import { readAttempts } from "./attempts";
import { Budgets } from "./budgets";
import { Events } from "./events";
import { select, useModel } from "./page";
import { runOf } from "./waterfall";
import { askTraceTemplate, traceLink } from "./traces";

export function Inspector() {
  const model = useModel();
  const selection = model.selection.value;
  if (selection?.kind === "message") return <MessageInspector key={selection.id} id={selection.id} />;
  if (selection?.kind === "request") return <RequestInspector key={selection.id} id={selection.id} />;
  const run = runOf(model);
  return run === null ? <Empty title="Nothing is selected" /> : <RunInspector key={run} id={run} />;
}

interface Told {
  run: Run;
  explanation: string;
  attempts: Attempt[];
  /** Whether the run has more attempts. */
  more: boolean;
}

function RunInspector({ id }: { id: string }) {
  const model = useModel();
  const [tab, setTab] = useState<"state" | "attempts" | "events" | "json">("state");
  const linked = place.value.query.has("event") && place.value.query.get("run") === id;
  useEffect(() => {
    if (linked) setTab("events");
  }, [linked]);
  const known = model.runs.value.get(id);
  const state = known ? `${known.status} ${known.attempt}` : "";
  const read = async (signal: AbortSignal): Promise<Told> => {
    const [run, explained, attempts] = await Promise.all([
      get<Run>(at.run(model.id, id), {}, signal),
      get<{ explanation: string }>(at.run(model.id, id, "explain"), {}, signal),
      readAttempts(model.id, id, signal),
    ]);
    return { run, explanation: explained.explanation, attempts: attempts.items, more: attempts.next !== null };
  };
  const told = useLive<Told>(`${model.id} ${id} ${state}`, read, known && isLive(known) ? 3000 : 0);
  if (!told.value) return told.error !== null ? <Problem error={told.error} /> : <div class="inspector" aria-busy="true" />;
  const { run, attempts, more } = told.value;
  return (
    <div class="inspector">
      {told.error !== null && <Problem error={told.error} />}
      <header class="inspector-head">
        <h2>Run</h2>
        <Status status={run.status} />
        <span class="spacer" />
        {can("write") && isLive(run) && (
          <Button icon="stop" onClick={() => cancel(run).then(told.refresh)}>
            Cancel
          </Button>
        )}
        {can("write") && (run.status === "failed" || run.status === "dead") && (
          <Button icon="again" onClick={() => redrive(run).then(told.refresh)}>
            Redrive
          </Button>
        )}
      </header>
      <p class="explanation">{told.value.explanation}</p>
      <Tabs
        label="Parts of the run"
        value={tab}
        onChange={setTab}
        names={[["state", "State"], ["attempts", `Attempts ${attempts.length}${more ? "+" : ""}`], ["events", "Events"], ["json", "JSON"]]}
      />
      {(tab === "state" || tab === "attempts") && <Bound shown={attempts.length} one="attempt" more={more} />}
      {tab === "state" && <RunState run={run} attempts={attempts} requests={model.requests.value.filter((each) => each.run_id === id)} />}
      {tab === "attempts" && <Attempts attempts={attempts} />}
      {tab === "events" && <Events run={run} />}
      {tab === "json" && <Code value={run} />}
    </div>
  );
}

function RunState({ run, attempts, requests }: { run: Run; attempts: Attempt[]; requests: HitlRequest[] }) {
  const model = useModel();
  const trace = traceLink(run.trace_context);
  const history = historyOf(run, attempts);
  return (
    <>
      {run.error && (
        <div class="run-error">
          <p>
            <code>{run.error.code}</code> {run.error.message}
          </p>
          {run.error.traceback && (
            <Fold title="Traceback">
              <Code value={run.error.traceback} label="Traceback" />
            </Fold>
          )}
        </div>
      )}
      {requests.map((each) => (
        <button type="button" class="link block" key={each.request_id} onClick={() => select({ kind: "request", id: each.request_id })}>
          waits for {each.kind === "approval" ? "an approval" : "an answer"}
        </button>
      ))}
      {run.waiting_for === "answer" && model.moreRequests.value && <MoreRequests />}
      <dl class="fields">
        <Field name="Id"><Id value={run.run_id} /></Field>
        <Field name="Agent">{run.agent ?? "default"}</Field>
        <Field name="Queue">{run.queue} <span class="dim">{run.priority}</span></Field>
        <Field name="Lane">
          {run.lane || "thread"} <span class="dim">{placeInLane(run, model.live.value)}</span>
        </Field>
        <Field name="Worker">{run.worker_id ?? attempts.at(-1)?.worker_id ?? "none"}</Field>
        {run.app_version && <Field name="Version">{run.app_version}</Field>}
        <Field name="Attempts">
          {run.attempt} <span class="dim">{[run.error_count > 0 && count(run.error_count, "error"), run.crash_count > 0 && count(run.crash_count, "crash", "crashes")].filter(Boolean).join(", ")}</span>
        </Field>
        {run.usage.requests > 0 ? (
          <>
            <Field name="Tokens">
              {tokens(run.usage.input_tokens)} in, {tokens(run.usage.output_tokens)} out <span class="dim">{count(run.usage.requests, "model request")}</span>
            </Field>
            <Field name="Cost">{money(run.usage.cost)}</Field>
            <Field name="Time">{seconds(run.usage.seconds)} <span class="dim">of models and tools</span></Field>
          </>
        ) : (
          <Field name="Usage"><span class="dim">no model requests</span></Field>
        )}
        <Budgets run={run} requests={requests} />
        {trace && (
          <Field name="Trace">
            {trace.url ? (
              <a href={trace.url} target="_blank" rel="noopener noreferrer">
                {trace.id.slice(0, 16)}…
              </a>
            ) : (
              <Id value={trace.id} />
            )}{" "}
            <button type="button" class="link" onClick={askTraceTemplate}>
              set link
            </button>
          </Field>
        )}
      </dl>
      <h3>History</h3>
      <ol class="history">
        {history.map(([name, time]) => (
          <li key={`${name} ${time}`}>
            <time dateTime={time} title={moment(time)}>
              {clock(time)}
            </time>{" "}
            {name}
          </li>
        ))}
      </ol>
      <Fold title="Options">
        <Code value={run.options} label="Options" />
      </Fold>
      {Object.keys(run.metadata).length > 0 && (
        <Fold title="Metadata">
          <Code value={run.metadata} label="Metadata" />
        </Fold>
      )}
    </>
  );
}

function MoreRequests() {
  const model = useModel();
  if (model.mostRequests.value) {
    return (
      <Bound shown={model.requests.value.length} one="request" more>
        <a href={href(["inbox"])}>Inbox</a>
      </Bound>
    );
  }
  return (
    <Button kind="quiet" onClick={() => attempt(() => model.readMoreRequests())}>
      More requests
    </Button>
  );
}

/** What happened to a run, in order. */
function historyOf(run: Run, attempts: Attempt[]): [string, string][] {
  const ends: Record<string, string> = { lost: "the worker died", retried: "failed, to be retried", released: "released by the worker" };
  const found: [string, string | null][] = [["accepted", run.accepted_at], ["due", run.run_at], ["admitted", run.admitted_at]];
  attempts.forEach((each, n) => {
    found.push([`attempt ${n + 1} started`, each.started_at]);
    if (each.outcome !== run.status || run.finished_at === null) found.push([ends[each.outcome] ?? each.outcome, each.ended_at]);
  });
  found.push(["cancel requested", run.cancel_requested_at], [run.status, run.finished_at]);
  return found.filter((each): each is [string, string] => each[1] !== null).sort((a, b) => Date.parse(a[1]) - Date.parse(b[1]));
}

/** Which of the runs of its lane that have not ended this is. Nothing if it is alone. */
function placeInLane(run: Run, live: Run[]): string {
  const lane = live.filter((each) => each.thread_id === run.thread_id && each.lane === run.lane && each.kind === "prompt");
  const before = lane.filter((each) => each.accepted_at < run.accepted_at).length;
  return lane.length > 1 && lane.some((each) => each.run_id === run.run_id) ? `${before + 1} of ${lane.length}` : "";
}

function Attempts({ attempts }: { attempts: Attempt[] }) {
  return (
    <ol class="attempts">
      {attempts.map((each, n) => (
        <li key={each.fence}>
          <p>
            <strong>{n + 1}</strong> <Status status={each.outcome} /> <span class="spacer" />
            <span class="dim">{each.started_at && each.ended_at ? seconds((Date.parse(each.ended_at) - Date.parse(each.started_at)) / 1000) : <Age at={each.started_at} />}</span>
          </p>
          <p class="dim">
            {each.worker_id ?? "no worker"} · fence {each.fence} · {clock(each.started_at)}–{each.ended_at ? clock(each.ended_at) : "…"}
          </p>
          {each.error && <p class="bad-text">{each.error.code}: {each.error.message}</p>}
        </li>
      ))}
    </ol>
  );
}

function MessageInspector({ id }: { id: string }) {
  const model = useModel();
  const leaf = place.value.query.get("leaf");
  const shown = model.messages.value.find((each) => each.id === id);
  const found = useLive<Message>(`${model.id} ${id}`, (signal) => get<Message>(at.thread(model.id, "messages", id), {}, signal), 0);
  const message = found.value ?? shown;
  if (found.error !== null && !message) return <Problem error={found.error} />;
  if (!message) return <div class="inspector" aria-busy="true" />;
  return (
    <div class="inspector">
      <header class="inspector-head">
        <h2>Message</h2>
        <span class="chip">{message.role}</span>
      </header>
      <dl class="fields">
        <Field name="Id"><code>{message.id}</code></Field>
        <Field name="Number">{message.seq}</Field>
        <Field name="Parent">
          {message.parent_id ? <a href={href(["threads", model.id], { leaf, message: message.parent_id })}><Id value={message.parent_id} /></a> : "none"}
        </Field>
        <Field name="Run">
          {message.run_id ? <a href={href(["threads", model.id], { leaf, run: message.run_id })}><Id value={message.run_id} /></a> : "stored without a run"}
        </Field>
        <Field name="Stored">{moment(message.created_at)}</Field>
        {message.usage && (
          <Field name="Usage">
            {tokens(message.usage.input_tokens)} in, {tokens(message.usage.output_tokens)} out, {money(message.usage.cost)}
          </Field>
        )}
      </dl>
      <Code value={message} label="Message as JSON" />
    </div>
  );
}

function RequestInspector({ id }: { id: string }) {
  const model = useModel();
  const pending = model.requests.value.some((each) => each.request_id === id);
  const found = useLive<HitlRequest>(id, (signal) => get<HitlRequest>(at.request(id), {}, signal), 0);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else void found.refresh();
  }, [pending]);
  if (!found.value) return found.error !== null ? <Problem error={found.error} /> : <div class="inspector" aria-busy="true" />;
  return (
    <div class="inspector">
      {found.error !== null && <Problem error={found.error} />}
      <RequestDetail request={found.value} onDone={() => (model.reloadSoon(0), void found.refresh())} />
      <Fold title="Schema of the answer">
        <Code value={found.value.answer_schema ?? "any text"} label="Schema" />
      </Fold>
      <Fold title="JSON">
        <Code value={found.value} />
      </Fold>
    </div>
  );
}
