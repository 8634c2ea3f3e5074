/** The answer to a request: a form made from the JSON schema of its answers, or approval with edited arguments. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, at, get, post } from "../api";
import { moment } from "../format";
import { parse, write } from "../json";
import { can } from "../session";
import type { HitlRequest, Json, JsonObject } from "../types";
import { countPending } from "../pending";
import { Age, Button, Fold, Problem } from "./bits";
import { FIELDS } from "./keys";
import { Code, json, visible } from "./long";
import { useOnce } from "./once";
import { initial, SchemaInput } from "./schema_input";

/** Milliseconds for which a new form takes no answer: a click that was meant for what was there before answers nothing. */
const CLICK_TIME = 400;

/** Stands for the person who answers if the deadline does. */
const AT_DEADLINE = "deadline";

/** Characters of a field from which on it is folded. */
const LARGE = 1000;
const MOST_FIELDS = 50;

/** The field of the payload that has the question. */
function questionField(payload: JsonObject): string | undefined {
  return ["question", "message", "reason", "prompt"].find((name) => typeof payload[name] === "string" && payload[name] !== "");
}

export function question(request: HitlRequest): string {
  const payload = request.payload;
  const field = questionField(payload);
  if (field !== undefined) return visible(payload[field] as string);
  const call = callOf(request);
  return visible(call ? `Call ${call.name}?` : json(payload));
}

/** The field of the payload that has the call, unless the payload itself is the call. */
function callField(payload: JsonObject): string | undefined {
  return ["tool_call", "call"].find((name) => payload[name] !== undefined && payload[name] !== null);
}

export function callOf(request: HitlRequest): { name: string; arguments: Json } | null {
  const field = callField(request.payload);
  const found = field === undefined ? request.payload : request.payload[field];
  if (typeof found !== "object" || found === null || Array.isArray(found)) return null;
  const given = found as JsonObject;
  const name = given.name ?? given.tool ?? given.tool_name;
  const args = given.arguments === undefined ? given.args : given.arguments;
  return typeof name === "string" ? { name, arguments: args === undefined ? {} : args } : null;
}

interface Shown {
  name: string;
  value: Json;
  large: boolean;
}

/** The payload but for what is shown as the question and as the call of an approval. */
function fieldsOf(request: HitlRequest): Shown[] {
  const { kind, payload } = request;
  const call = callOf(request);
  const asked = questionField(payload);
  if (asked === undefined && call === null) return []; // the whole payload is the question
  const shown = [asked, kind === "approval" && call !== null ? callField(payload) : undefined];
  const left = Object.entries(payload).filter(([name]) => !shown.includes(name));
  const fields: [string, Json][] = left.length > MOST_FIELDS ? [["payload", Object.fromEntries(left)]] : left;
  return fields.map(([name, value]) => ({ name: visible(name), value, large: json(value).length > LARGE }));
}

/** What the agent gave beside the question and the call, and what the deadline does. */
export function Given({ request, over = false }: { request: HitlRequest; over?: boolean }) {
  const fields = useMemo(() => fieldsOf(request), [request]);
  return (
    <>
      {fields.map(({ name, value, large }) => (
        <Fold key={name} title={<span class="fold-words">{name}</span>} open={!large}>
          <Code value={value} label={name} />
        </Fold>
      ))}
      {request.deadline_at !== null && request.answered_at === null && !over && <AtDeadline at={request.deadline_at} outcome={request.on_deadline} />}
    </>
  );
}

function AtDeadline({ at: deadline, outcome }: { at: string; outcome: JsonObject | null }) {
  if (outcome === null || !("answer" in outcome)) return <p class="dim">If nobody answers by {moment(deadline)}, the run fails.</p>;
  return (
    <div>
      <p class="dim">If nobody answers by {moment(deadline)}, this is the answer:</p>
      <Code value={outcome.answer} label="Answer at the deadline" />
    </div>
  );
}

type Draft = (typed: Json | undefined) => void;

interface Answering {
  request: HitlRequest;
  /** Whether the request waits for no answer any more, unless it has one. */
  over?: boolean | undefined;
  onDone?: ((answered: HitlRequest) => void) | undefined;
  /** Is told whether something is typed and not sent. */
  onDraft?: ((typed: boolean) => void) | undefined;
}

/** The answer of a request, or the form for it. What was typed stays readable if somebody else answers, or the run is cancelled. */
export function AnswerForm({ request: given, over: ended = false, onDone, onDraft }: Answering) {
  const [later, setLater] = useState<HitlRequest | null>(null);
  const [stale, setStale] = useState(false);
  const request = later ?? given;
  const answered = request.answered_at !== null;
  const over = !answered && (ended || stale);
  const [error, setError] = useState<unknown>(null);
  const [ready, setReady] = useState(false);
  const [draft, setDraft] = useState<Json | undefined>(undefined);
  const sent = useRef<string | null>(null);
  useEffect(() => {
    const timer = setTimeout(() => setReady(true), CLICK_TIME);
    return () => clearTimeout(timer);
  }, []);
  const own = answered && sent.current === write(request.answer);
  const unsent = own ? undefined : draft;
  useEffect(() => onDraft?.(unsent !== undefined), [unsent !== undefined]);
  const form = useRef<HTMLFieldSetElement>(null);
  // as this is drawn, the form that it may replace is still in the page
  const focused = form.current?.contains(document.activeElement) ? document.activeElement : null;
  const once = useOnce();
  const answer = async (value: Json): Promise<void> => {
    setError(null);
    sent.current = write(value);
    try {
      await once.act(sent.current, async (key) => {
        const done = await post<HitlRequest>(at.request(request.request_id, "respond"), { answer: value }, {}, key);
        setDraft(undefined);
        void countPending();
        onDone?.(done);
      });
    } catch (found) {
      setError(found);
      if (!(found instanceof ApiError) || found.status !== 409) return;
      const now = await get<HitlRequest>(at.request(request.request_id)).catch(() => null);
      if (now !== null && now.answered_at !== null) setLater(now);
      else if (now !== null) setStale(found.code === "hitl_stale_answer");
    }
  };
  if (answered || over) {
    const why = answered ? `The request was answered by ${whoAnswered(request)} while you typed.` : "The request no longer waits for an answer.";
    return (
      <>
        <Given request={request} over={over} />
        <Successor focused={focused} freed={own}>
          {answered && <Answered request={request} />}
          {unsent !== undefined ? <Unsent draft={unsent} why={why} discard={() => setDraft(undefined)} /> : over && <p class="dim">{why}</p>}
        </Successor>
      </>
    );
  }
  return (
    <>
      <Given request={request} />
      {can("respond") ? (
        <fieldset class="answer" ref={form} disabled={!ready || once.busy}>
          {request.kind === "approval" ? (
            <Approve request={request} answer={answer} draft={setDraft} />
          ) : request.kind === "step" ? (
            <Decide answer={answer} draft={setDraft} />
          ) : (
            <Question schema={request.answer_schema} answer={answer} draft={setDraft} />
          )}
          {error !== null && <Problem error={error} />}
        </fieldset>
      ) : (
        <p class="dim">This key does not have the scope “respond”.</p>
      )}
    </>
  );
}

/** Takes the place of a form, and its focus. What somebody goes on to type is no command, unless the keys are `freed`.
 *  `focused`: what had the focus in the form. */
function Successor(props: { focused: Element | null; freed: boolean; children: ComponentChildren }) {
  const element = useRef<HTMLDivElement>(null);
  const [focused] = useState(props.focused);
  useLayoutEffect(() => {
    if (focused) element.current?.focus({ preventScroll: true });
  }, []);
  return (
    <div class="successor" ref={element} tabIndex={-1} data-typing={(!props.freed && focused?.matches(FIELDS)) || undefined}>
      {props.children}
    </div>
  );
}

function whoAnswered({ answered_by, on_behalf_of }: HitlRequest): string {
  if (answered_by === AT_DEADLINE) return "the deadline";
  return `${answered_by ?? "somebody"}${on_behalf_of ? ` for ${on_behalf_of}` : ""}`;
}

function Answered({ request }: { request: HitlRequest }) {
  return (
    <div class="answered">
      <p>
        Answered by {whoAnswered(request)}, <Age at={request.answered_at} /> ago
      </p>
      <Code value={request.answer} label="Answer" />
    </div>
  );
}

/** What was typed for a request that took another answer, or none. */
function Unsent({ draft, why, discard }: { draft: Json; why: string; discard: () => void }) {
  const element = useRef<HTMLDivElement>(null);
  return (
    <div class="answered" role="status" ref={element}>
      <p>{why} What you typed was not sent:</p>
      <Code value={draft} label="What you typed" />
      <Button kind="quiet" onClick={() => (focusAround(element.current), discard())}>
        Discard what you typed
      </Button>
    </div>
  );
}

/** Focus the part of the page that an element is in. */
function focusAround(element: HTMLElement | null): void {
  element?.closest(".successor")?.parentElement?.closest<HTMLElement>("[tabindex]")?.focus({ preventScroll: true });
}

interface Answers {
  answer: (value: Json) => Promise<void>;
  draft: Draft;
}

function Approve({ request, answer, draft }: Answers & { request: HitlRequest }) {
  const call = callOf(request);
  const before = visible(json(call?.arguments ?? {}));
  const [mode, setMode] = useState<"ask" | "edit" | "deny">("ask");
  const [reason, setReason] = useState("");
  const back = (): void => (setMode("ask"), setReason(""), draft(undefined));
  if (mode === "edit") {
    const send = (edited: Json): Promise<void> => answer({ approved: true, arguments: edited });
    return <JsonEditor label={`Arguments of ${call?.name ?? "the call"}`} before={before} confirm="Approve with these arguments" send={send} back={back} draft={draft} />;
  }
  if (mode === "deny") {
    const type = (text: string): void => (setReason(text), draft(text || undefined));
    return (
      <div class="answer-body">
        <label class="labelled">
          <span>Reason (the model reads it)</span>
          <input value={reason} onInput={(e) => type(e.currentTarget.value)} />
        </label>
        <div class="actions">
          <Button kind="danger" onClick={() => answer(reason ? { approved: false, reason } : false)}>
            Deny
          </Button>
          <Button onClick={back}>Back</Button>
        </div>
      </div>
    );
  }
  return (
    <div class="actions">
      <Button kind="primary" icon="check" onClick={() => answer(true)}>
        Approve
      </Button>
      <Button icon="close" onClick={() => setMode("deny")}>
        Deny…
      </Button>
      {call && (
        <Button icon="edit" onClick={() => setMode("edit")}>
          Edit arguments…
        </Button>
      )}
    </div>
  );
}

/** A value as JSON, to be edited and sent. */
function JsonEditor(props: { label: string; before: string; confirm: string; send: (value: Json) => Promise<void>; back: () => void; draft: Draft }) {
  const [text, setText] = useState(props.before);
  const [wrong, setWrong] = useState<string | null>(null);
  const type = (typed: string): void => (setText(typed), props.draft(typed === props.before ? undefined : typed));
  const send = async (): Promise<void> => {
    try {
      const value = parse(text);
      setWrong(null);
      await props.send(value);
    } catch (error) {
      setWrong(`not JSON: ${(error as Error).message}`);
    }
  };
  return (
    <div class="answer-body">
      <label class="labelled">
        <span>{props.label}</span>
        <textarea class="mono" rows={Math.min(14, text.split("\n").length + 1)} value={text} onInput={(e) => type(e.currentTarget.value)} />
      </label>
      {wrong && <Problem error={wrong} />}
      <div class="actions">
        <Button kind="primary" icon="check" onClick={send}>
          {props.confirm}
        </Button>
        <Button onClick={props.back}>Back</Button>
      </div>
    </div>
  );
}

/** The answer for a step whose end is not recorded: whether it was done. */
function Decide({ answer, draft }: Answers) {
  const [done, setDone] = useState(false);
  if (done) {
    const send = (result: Json): Promise<void> => answer({ action: "done", result });
    const back = (): void => (setDone(false), draft(undefined));
    return <JsonEditor label="Result of the step (JSON)" before="null" confirm="Record this result" send={send} back={back} draft={draft} />;
  }
  return (
    <div class="actions">
      <Button icon="check" onClick={() => setDone(true)}>
        The step was done…
      </Button>
      <Button icon="again" onClick={() => answer({ action: "retry" })}>
        Repeat the step
      </Button>
      <Button kind="danger" onClick={() => answer({ action: "fail" })}>
        Fail the step
      </Button>
    </div>
  );
}

function Question({ schema, answer, draft }: Answers & { schema: JsonObject | null }) {
  const root = schema ?? { type: "string" };
  const [value, setValue] = useState<Json | undefined>(() => initial(root, root) ?? "");
  const type = (typed: Json | undefined): void => (setValue(typed), draft(typed === "" ? undefined : typed));
  const given = value !== undefined && (schema !== null || value !== "");
  return (
    <form
      class="answer-body"
      onSubmit={(event) => {
        event.preventDefault();
        if (value !== undefined) void answer(value);
      }}
    >
      <SchemaInput schema={root} root={root} value={value} onChange={type} label="Answer" required />
      <div class="actions">
        <Button kind="primary" type="submit" icon="send" disabled={!given}>
          Answer
        </Button>
      </div>
    </form>
  );
}
