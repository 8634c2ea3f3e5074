/** The answer to a request: a form made from the JSON schema of its answers, or approval with edited arguments. */

import { useState } from "preact/hooks";
import { at, post } from "../api";
import { can } from "../session";
import type { HitlRequest, Json, JsonObject } from "../types";
import { countPending } from "../pending";
import { Button, Problem } from "./bits";

export function question(request: HitlRequest): string {
  const payload = request.payload;
  for (const name of ["question", "message", "reason", "prompt"]) {
    if (typeof payload[name] === "string" && payload[name] !== "") return payload[name];
  }
  const call = callOf(request);
  return call ? `Call ${call.name}?` : JSON.stringify(payload);
}

export function callOf(request: HitlRequest): { name: string; arguments: JsonObject } | null {
  const found = request.payload.tool_call ?? request.payload.call ?? request.payload;
  if (typeof found !== "object" || found === null || Array.isArray(found)) return null;
  const given = found as JsonObject;
  const name = given.name ?? given.tool ?? given.tool_name;
  const args = given.arguments ?? given.args;
  if (typeof name !== "string") return null;
  return { name, arguments: typeof args === "object" && args !== null && !Array.isArray(args) ? args : {} };
}

export function AnswerForm({ request, onDone }: { request: HitlRequest; onDone?: (answered: HitlRequest) => void }) {
  const [error, setError] = useState<unknown>(null);
  if (!can("respond")) return <p class="dim">This key may not answer requests.</p>;
  const answer = async (value: Json): Promise<void> => {
    setError(null);
    try {
      const answered = await post<HitlRequest>(at.request(request.request_id, "respond"), { answer: value });
      void countPending();
      onDone?.(answered);
    } catch (found) {
      setError(found);
    }
  };
  return (
    <div class="answer">
      {request.kind === "approval" ? <Approve request={request} answer={answer} /> : <Question schema={request.answer_schema} answer={answer} />}
      {error !== null && <Problem error={error} />}
    </div>
  );
}

function Approve({ request, answer }: { request: HitlRequest; answer: (value: Json) => Promise<void> }) {
  const call = callOf(request);
  const before = JSON.stringify(call?.arguments ?? {}, null, 2);
  const [mode, setMode] = useState<"ask" | "edit" | "deny">("ask");
  const [args, setArgs] = useState(before);
  const [reason, setReason] = useState("");
  const [wrong, setWrong] = useState<string | null>(null);
  const approveEdited = async (): Promise<void> => {
    try {
      const edited = JSON.parse(args) as Json;
      setWrong(null);
      await answer({ approved: true, arguments: edited });
    } catch (error) {
      setWrong(`not JSON: ${(error as Error).message}`);
    }
  };
  if (mode === "edit") {
    return (
      <div class="answer-body">
        <label class="labelled">
          <span>Arguments of {call?.name ?? "the call"}</span>
          <textarea class="mono" rows={Math.min(14, args.split("\n").length + 1)} value={args} onInput={(e) => setArgs(e.currentTarget.value)} />
        </label>
        {wrong && <Problem error={wrong} />}
        <div class="actions">
          <Button kind="primary" icon="check" onClick={approveEdited}>
            Approve with these
          </Button>
          <Button onClick={() => setMode("ask")}>Back</Button>
        </div>
      </div>
    );
  }
  if (mode === "deny") {
    return (
      <div class="answer-body">
        <label class="labelled">
          <span>Reason, which the model reads</span>
          <input value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
        </label>
        <div class="actions">
          <Button kind="danger" onClick={() => answer(reason ? { approved: false, reason } : false)}>
            Deny
          </Button>
          <Button onClick={() => setMode("ask")}>Back</Button>
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

type Schema = JsonObject;

function Question({ schema, answer }: { schema: Schema | null; answer: (value: Json) => Promise<void> }) {
  const [value, setValue] = useState<Json>(() => initial(schema ?? { type: "string" }));
  return (
    <form
      class="answer-body"
      onSubmit={(event) => {
        event.preventDefault();
        void answer(value);
      }}
    >
      <Input schema={schema ?? { type: "string" }} value={value} onChange={setValue} label="Answer" />
      <div class="actions">
        <Button kind="primary" type="submit" icon="send">
          Answer
        </Button>
      </div>
    </form>
  );
}

function initial(schema: Schema): Json {
  if (schema.default !== undefined) return schema.default;
  if (Array.isArray(schema.enum)) return schema.enum[0] ?? null;
  if (schema.type === "object") {
    const properties = (schema.properties ?? {}) as Record<string, Schema>;
    const required = (schema.required ?? []) as string[];
    return Object.fromEntries(Object.entries(properties).filter(([name]) => required.includes(name)).map(([name, each]) => [name, initial(each)]));
  }
  if (schema.type === "boolean") return false;
  if (schema.type === "integer" || schema.type === "number") return 0;
  if (schema.type === "array") return [];
  return "";
}

function Input(props: { schema: Schema; value: Json; onChange: (value: Json) => void; label: string }) {
  const { schema, value, onChange } = props;
  const label = typeof schema.title === "string" ? schema.title : props.label;
  const hint = typeof schema.description === "string" ? <small>{schema.description}</small> : null;
  if (Array.isArray(schema.enum)) {
    const options = schema.enum;
    return (
      <label class="labelled">
        <span>{label}</span>
        <select value={String(options.indexOf(value))} onChange={(e) => onChange(options[Number(e.currentTarget.value)] ?? null)}>
          {options.map((each, n) => (
            <option key={n} value={String(n)}>
              {typeof each === "string" ? each : JSON.stringify(each)}
            </option>
          ))}
        </select>
        {hint}
      </label>
    );
  }
  if (schema.type === "object" && schema.properties) {
    const given = (value ?? {}) as JsonObject;
    return (
      <fieldset>
        <legend>{label}</legend>
        {hint}
        {Object.entries(schema.properties as Record<string, Schema>).map(([name, each]) => (
          <Input key={name} label={name} schema={each} value={given[name] ?? initial(each)} onChange={(next) => onChange({ ...given, [name]: next })} />
        ))}
      </fieldset>
    );
  }
  if (schema.type === "boolean") {
    return (
      <label class="checked">
        <input type="checkbox" checked={value === true} onChange={(e) => onChange(e.currentTarget.checked)} />
        <span>{label}</span>
        {hint}
      </label>
    );
  }
  if (schema.type === "integer" || schema.type === "number") {
    return (
      <label class="labelled">
        <span>{label}</span>
        <input type="number" step={schema.type === "integer" ? 1 : "any"} value={String(value ?? "")} onInput={(e) => onChange(e.currentTarget.valueAsNumber)} />
        {hint}
      </label>
    );
  }
  if (schema.type === "string" || schema.type === undefined) {
    const plain = schema.type === "string" || Object.keys(schema).length === 0;
    if (plain) {
      return (
        <label class="labelled">
          <span>{label}</span>
          <textarea rows={2} value={typeof value === "string" ? value : ""} onInput={(e) => onChange(e.currentTarget.value)} />
          {hint}
        </label>
      );
    }
  }
  return <JsonInput {...props} label={label} />;
}

function JsonInput({ value, onChange, label }: { value: Json; onChange: (value: Json) => void; label: string }) {
  const [text, setText] = useState(JSON.stringify(value, null, 2));
  const [wrong, setWrong] = useState(false);
  const change = (next: string): void => {
    setText(next);
    try {
      onChange(JSON.parse(next) as Json);
      setWrong(false);
    } catch {
      setWrong(true);
    }
  };
  return (
    <label class="labelled">
      <span>{label} (JSON)</span>
      <textarea class="mono" rows={4} value={text} aria-invalid={wrong} onInput={(e) => change(e.currentTarget.value)} />
    </label>
  );
}
