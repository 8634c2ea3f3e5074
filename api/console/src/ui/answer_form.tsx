/** The answer to a request: a form made from the JSON schema of its answers, or approval with edited arguments. */

import { useEffect, useState } from "preact/hooks";
import { at, post } from "../api";
import { can } from "../session";
import type { HitlRequest, Json, JsonObject } from "../types";
import { countPending } from "../pending";
import { Button, Problem } from "./bits";
import { json, visible } from "./long";
import { initial, SchemaInput } from "./schema_input";

/** Milliseconds for which a new form takes no answer: a click that was meant for what was there before answers nothing. */
const CLICK_TIME = 400;

export function question(request: HitlRequest): string {
  const payload = request.payload;
  for (const name of ["question", "message", "reason", "prompt"]) {
    if (typeof payload[name] === "string" && payload[name] !== "") return visible(payload[name]);
  }
  const call = callOf(request);
  return visible(call ? `Call ${call.name}?` : json(payload));
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
  const [ready, setReady] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setReady(true), CLICK_TIME);
    return () => clearTimeout(timer);
  }, []);
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
    <fieldset class="answer" disabled={!ready}>
      {request.kind === "approval" ? <Approve request={request} answer={answer} /> : <Question schema={request.answer_schema} answer={answer} />}
      {error !== null && <Problem error={error} />}
    </fieldset>
  );
}

function Approve({ request, answer }: { request: HitlRequest; answer: (value: Json) => Promise<void> }) {
  const call = callOf(request);
  const before = visible(json(call?.arguments ?? {}));
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

function Question({ schema, answer }: { schema: JsonObject | null; answer: (value: Json) => Promise<void> }) {
  const root = schema ?? { type: "string" };
  const [value, setValue] = useState<Json>(() => initial(root, root) ?? "");
  return (
    <form
      class="answer-body"
      onSubmit={(event) => {
        event.preventDefault();
        void answer(value);
      }}
    >
      <SchemaInput schema={root} root={root} value={value} onChange={setValue} label="Answer" required />
      <div class="actions">
        <Button kind="primary" type="submit" icon="send">
          Answer
        </Button>
      </div>
    </form>
  );
}
