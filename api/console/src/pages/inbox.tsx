/** All requests that wait for a human, over all threads. */

import { useState } from "preact/hooks";
import { at } from "../api";
import { href, place, setQuery } from "../router";
import { now } from "../format";
import type { HitlRequest } from "../types";
import { AnswerForm, callOf, question } from "../ui/answer_form";
import { Age, Code, Empty, Id, Problem } from "../ui/bits";
import { note } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { useLive } from "../ui/live";
import { usePaged } from "../ui/paged";
import { get } from "../api";

export function Inbox() {
  const list = usePaged<HitlRequest>("v1/requests", {}, (each) => each.request_id, 3000);
  const [answered, setAnswered] = useState<ReadonlySet<string>>(new Set());
  const items = list.items.filter((each) => !answered.has(each.request_id));
  const chosen = place.value.query.get("request");
  const index = items.findIndex((each) => each.request_id === chosen);
  const current = items[index] ?? (chosen === null ? items[0] : undefined);
  const move = (step: number): void => {
    const next = items[Math.max(0, Math.min(items.length - 1, (index < 0 ? 0 : index) + step))];
    if (next) setQuery({ request: next.request_id });
  };
  useKeys({ ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1) });
  return (
    <section class="page split">
      <header class="bar">
        <h1>Inbox</h1>
        <span class="dim">{items.length === 0 ? "" : `${items.length}${list.ended ? "" : "+"} waiting`}</span>
      </header>
      {list.error !== null && <Problem error={list.error} />}
      <div class="split-body">
        <ul class="inbox-list" aria-label="Pending requests">
          {items.map((each) => (
            <li key={each.request_id}>
              <button
                type="button"
                class="inbox-row"
                aria-current={each.request_id === current?.request_id}
                onClick={() => setQuery({ request: each.request_id })}
              >
                <span class="inbox-question">{question(each)}</span>
                <span class="inbox-meta">
                  <span class="chip">{each.kind}</span>
                  <span>{each.agent ?? "default"}</span>
                  <span class="spacer" />
                  {each.deadline_at && <Deadline at={each.deadline_at} />}
                  <Age at={each.created_at} />
                </span>
              </button>
            </li>
          ))}
          {!list.ended && (
            <li>
              <button type="button" class="more" onClick={list.more}>
                Show more
              </button>
            </li>
          )}
        </ul>
        <div class="inbox-detail">
          {current ? (
            <RequestDetail
              key={current.request_id}
              request={current}
              onDone={() => {
                setAnswered(new Set([...answered, current.request_id]));
                note("Answered");
                void list.refresh();
              }}
            />
          ) : chosen !== null ? (
            <Answered id={chosen} />
          ) : (
            !list.loading && <Empty title="Nobody waits for you">Questions and approvals of all threads appear here.</Empty>
          )}
        </div>
      </div>
    </section>
  );
}

function Deadline({ at: deadline }: { at: string }) {
  const left = Date.parse(deadline) - now.value;
  return (
    <span class={`deadline${left < 300_000 ? " near" : ""}`} title={`deadline ${deadline}`}>
      due <Age at={deadline} />
    </span>
  );
}

/** A request whose link somebody followed after it was answered. */
function Answered({ id }: { id: string }) {
  const found = useLive<HitlRequest>(id, () => get<HitlRequest>(at.request(id)), 0);
  if (found.error !== null) return <Problem error={found.error} />;
  return found.value ? <RequestDetail request={found.value} /> : null;
}

export function RequestDetail({ request, onDone }: { request: HitlRequest; onDone?: () => void }) {
  const call = callOf(request);
  const thread = { message: null, run: request.run_id, request: request.request_id };
  return (
    <article class="request">
      <p class="request-kind">
        <span class="chip">{request.kind}</span> <Age at={request.created_at} /> ago
        {request.deadline_at && request.answered_at === null && <Deadline at={request.deadline_at} />}
      </p>
      <h2 class="request-question">{question(request)}</h2>
      {request.kind === "approval" && call && (
        <div class="call">
          <p class="call-name">
            <Icon name="tool" size={14} /> {call.name}
          </p>
          <Code value={call.arguments} label="Arguments" />
        </div>
      )}
      {request.answered_at !== null ? (
        <div class="answered">
          <p>
            Answered by {request.answered_by ?? "somebody"}
            {request.on_behalf_of && ` for ${request.on_behalf_of}`}, <Age at={request.answered_at} /> ago
          </p>
          <Code value={request.answer} label="Answer" />
        </div>
      ) : (
        <AnswerForm request={request} onDone={() => onDone?.()} />
      )}
      <p class="request-links">
        <a href={href(["threads", request.thread_id], thread)}>
          <Icon name="threads" size={14} /> {request.thread_id}
        </a>
        {request.run_id && (
          <span class="dim">
            run <Id value={request.run_id} />
          </span>
        )}
        <span class="dim">agent {request.agent ?? "default"}</span>
      </p>
    </article>
  );
}
