/** All requests that wait for a human, over all threads. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { at, get } from "../api";
import { brief, moment, now } from "../format";
import { href, place, setQuery, staying } from "../router";
import type { HitlRequest } from "../types";
import { AnswerForm, callOf, question } from "../ui/answer_form";
import { Age, Empty, Id, Problem } from "../ui/bits";
import { note } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { useLive } from "../ui/live";
import { Code, LongText } from "../ui/long";
import { usePaged } from "../ui/paged";
import { useTitle } from "../ui/title";
import { VirtualList } from "../ui/virtual";

const HEIGHT = 84;

const idOf = (request: HitlRequest): string => request.request_id;

export function Inbox() {
  const list = usePaged<HitlRequest>("v1/requests", {}, idOf, 3000);
  const [answered, setAnswered] = useState<ReadonlySet<string>>(new Set());
  const items = list.items.filter((each) => !answered.has(each.request_id));
  const waiting = `${items.length}${list.ended ? "" : "+"}`;
  useTitle(items.length > 0 ? `Inbox (${waiting})` : "Inbox");
  const chosen = place.value.query.get("request");
  const index = items.findIndex((each) => each.request_id === chosen);
  const oldest = items[0]?.request_id;
  // the shown request stays while others come and go
  useEffect(() => {
    if (chosen === null && oldest !== undefined) setQuery({ request: oldest });
  }, [chosen, oldest]);
  const move = (step: number): void => {
    const next = items[Math.max(0, Math.min(items.length - 1, index + step))];
    if (next) setQuery({ request: next.request_id });
  };
  useKeys({ ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1) });
  const shown = useRef(items);
  shown.current = items;
  const done = (id: string, stays: () => boolean): void => {
    note("Answered");
    if (stays()) {
      const at = shown.current.findIndex((each) => each.request_id === id);
      setQuery({ request: (shown.current[at + 1] ?? shown.current[at - 1])?.request_id ?? null });
    }
    setAnswered((old) => new Set([...old, id]));
    void list.refresh();
  };
  return (
    <section class="page split">
      <header class="bar">
        <h1>Inbox</h1>
        <span class="dim">{items.length === 0 ? "" : `${waiting} waiting`}</span>
      </header>
      {list.error !== null && <Problem error={list.error} />}
      <div class="split-body">
        <div class="inbox-list">
          <VirtualList
            items={items}
            height={HEIGHT}
            label="Pending requests"
            show={index}
            of={idOf}
            onLook={list.look}
            onEnd={list.more}
            row={(each) => <Row key={each.request_id} request={each} current={each.request_id === chosen} />}
          />
        </div>
        <div class="inbox-detail">
          {chosen !== null ? (
            <Chosen key={chosen} id={chosen} known={items[index]} onDone={done} />
          ) : (
            !list.loading && items.length === 0 && <Empty title="No request waits for an answer">Questions and approvals of all threads appear here.</Empty>
          )}
        </div>
      </div>
    </section>
  );
}

function Row({ request, current }: { request: HitlRequest; current: boolean }) {
  return (
    <div role="listitem">
      <button type="button" class="inbox-row" aria-current={current} onClick={() => setQuery({ request: request.request_id })}>
        <span class="inbox-question">{brief(question(request), 200)}</span>
        <span class="inbox-meta">
          <span class="chip">{request.kind}</span>
          <span class="inbox-agent">
            {request.agent ?? "default"} · {request.thread_id}
          </span>
          <span class="spacer" />
          {request.deadline_at && <Deadline at={request.deadline_at} />}
          <Age at={request.created_at} />
        </span>
      </button>
    </div>
  );
}

/** The chosen request as it is now: somebody else may answer it, or follow its link after its answer. */
function Chosen({ id, known, onDone }: { id: string; known: HitlRequest | undefined; onDone: (id: string, stays: () => boolean) => void }) {
  const stays = useMemo(() => staying("request"), [id]);
  const found = useLive<HitlRequest>(id, (signal) => get<HitlRequest>(at.request(id), {}, signal), 4000);
  const request = found.value ?? known;
  if (request) return <RequestDetail request={request} onDone={() => onDone(id, stays)} />;
  return found.error !== null ? <Problem error={found.error} /> : <div aria-busy="true" />;
}

function Deadline({ at: deadline }: { at: string }) {
  const left = Date.parse(deadline) - now.value;
  return (
    <span class={`deadline${left < 300_000 ? " near" : ""}`} title={`deadline ${moment(deadline)}`}>
      {left < 0 ? "overdue" : <>due <Age at={deadline} /></>}
    </span>
  );
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
      <LongText as="h2" class="request-question" text={question(request)} />
      {request.kind === "approval" && call && (
        <div class="call">
          <p class="call-name">
            <Icon name="tool" size={14} /> {call.name}
          </p>
          <Code value={call.arguments} label="Arguments" />
        </div>
      )}
      <AnswerForm request={request} onDone={() => onDone?.()} />
      <p class="request-links">
        <a href={href(["threads", request.thread_id], thread)}>
          <Icon name="threads" size={14} /> {request.thread_id}
        </a>
        {request.run_id && (
          <a href={href(["threads", request.thread_id], { run: request.run_id })}>
            <Icon name="runs" size={14} /> <Id value={request.run_id} />
          </a>
        )}
        <span class="dim">agent {request.agent ?? "default"}</span>
      </p>
    </article>
  );
}
