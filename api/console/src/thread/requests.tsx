/** The requests at the end of the transcript: those that wait, and those that ended while something was typed here. */

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { at, get } from "../api";
import { href } from "../router";
import type { HitlRequest } from "../types";
import { AnswerForm, callOf, question } from "../ui/answer_form";
import { Bound } from "../ui/bits";
import { useLive } from "../ui/live";
import { Code, LongText } from "../ui/long";
import { select, useModel } from "./page";
import { REQUESTS } from "./runs";

/** Milliseconds between two attempts to read what became of a request that waits no more. */
const REFRESH = 5000;

export function Requests() {
  const model = useModel();
  const typed = useSignal<ReadonlyMap<string, HitlRequest>>(new Map());
  const waiting = model.requests.value.slice(0, REQUESTS);
  const ids = new Set(model.requests.value.map((each) => each.request_id));
  const gone = [...typed.value.values()].filter((each) => each.thread_id === model.id && !ids.has(each.request_id));
  const keep = (request: HitlRequest, on: boolean): void => {
    const next = new Map(typed.value);
    if (on) next.set(request.request_id, request);
    else next.delete(request.request_id);
    typed.value = next;
  };
  return (
    <>
      {[...waiting, ...gone].map((each) => (
        <Inline key={each.request_id} request={each} gone={!ids.has(each.request_id)} onDraft={(on) => keep(each, on)} />
      ))}
      <Bound shown={waiting.length} one="request" more={model.moreRequests.value || model.requests.value.length > REQUESTS}>
        <a href={href(["inbox"])}>Inbox</a>
      </Bound>
    </>
  );
}

function Inline({ request, gone, onDraft }: { request: HitlRequest; gone: boolean; onDraft: (typed: boolean) => void }) {
  const model = useModel();
  const end = useRef<HitlRequest | null>(null); // it is read once
  if (!gone) end.current = null;
  const read = async (signal: AbortSignal): Promise<HitlRequest> => (gone ? (end.current ??= await get<HitlRequest>(at.request(request.request_id), {}, signal)) : request);
  const now = useLive<HitlRequest>(`${request.request_id} ${gone}`, read, gone ? REFRESH : 0).value;
  return (
    <section class="inline-request" aria-label="Request">
      <p class="request-kind">
        <span class="chip">{request.kind}</span> {request.agent ?? ""}
        <button type="button" class="link" onClick={() => select({ kind: "request", id: request.request_id })}>
          details
        </button>
      </p>
      <LongText class="request-question" text={question(request)} />
      {request.kind === "approval" && callOf(request) && <Code value={callOf(request)?.arguments} label="Arguments" />}
      <AnswerForm request={now ?? request} over={gone && now !== null} onDone={() => model.reloadSoon(0)} onDraft={onDraft} />
    </section>
  );
}
