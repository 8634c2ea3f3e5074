/** The playground: choose an agent, prompt, watch, answer, fork, and compare two threads side by side. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { useAgents } from "../agents";
import { at, get, post } from "../api";
import { href, place, setQuery } from "../router";
import { textOf } from "../runs";
import type { Message, Thread, ThreadDiff } from "../types";
import { Button, Empty, Problem } from "../ui/bits";
import { attempt } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { useLive } from "../ui/live";
import { Composer } from "../thread/composer";
import { ThreadModel } from "../thread/model";
import { Model } from "../thread/page";
import { Transcript } from "../thread/transcript";
import { diffWords } from "../worddiff";

export function Playground() {
  const query = place.value.query;
  const thread = query.get("thread");
  const other = query.get("other");
  const agents = useAgents();
  const agent = query.get("agent") ?? "";
  const compared = query.get("view") === "diff" && other !== null;
  const begin = (): void => setQuery({ thread: `play-${crypto.randomUUID?.().slice(0, 8) ?? Date.now()}`, other: null, view: null }, false);
  useEffect(() => {
    if (thread === null) begin();
  }, [thread]);
  const fork = (): Promise<boolean> =>
    attempt(async () => {
      const made = await post<{ thread: Thread }>(at.thread(thread as string, "fork"), {});
      setQuery({ other: made.thread.thread_id });
    }, "Forked: prompt both");
  if (thread === null) return null;
  return (
    <section class="page playground">
      <header class="bar">
        <h1>Playground</h1>
        <label class="inline-label">
          <span class="hidden-text">Agent</span>
          <select aria-label="Agent" value={agent} onChange={(e) => setQuery({ agent: e.currentTarget.value })}>
            <option value="">default agent</option>
            {agents.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </label>
        <span class="spacer" />
        {other !== null && (
          <Button pressed={compared} onClick={() => setQuery({ view: compared ? null : "diff" })}>
            Diff
          </Button>
        )}
        {other === null ? (
          <Button icon="fork" onClick={fork}>
            Fork beside
          </Button>
        ) : (
          <Button icon="close" onClick={() => setQuery({ other: null, view: null })}>
            Close right
          </Button>
        )}
        <Button icon="play" onClick={begin}>
          New
        </Button>
      </header>
      {compared ? (
        <Diff thread={thread} other={other} />
      ) : (
        <div class={`sides${other === null ? "" : " two"}`}>
          <Side key={thread} id={thread} agent={agent} />
          {other !== null && <Side key={other} id={other} agent={agent} />}
        </div>
      )}
    </section>
  );
}

function Side({ id, agent }: { id: string; agent: string }) {
  const model = useMemo(() => new ThreadModel(id), [id]);
  const [started, setStarted] = useState(false);
  useEffect(() => {
    void model.open(null);
    return () => model.close();
  }, [model]);
  const missing = model.error.value !== null;
  const waiting = missing && !started;
  // the first prompt makes the thread, which can be followed only then
  useEffect(() => {
    if (!waiting) return;
    const timer = setInterval(async () => {
      try {
        await get(at.thread(id));
      } catch {
        return;
      }
      setStarted(true);
      await model.open(null);
      setStarted(false);
    }, 400);
    return () => clearInterval(timer);
  }, [waiting]);
  return (
    <Model.Provider value={model}>
      <div class="side-pane">
        <p class="side-title">
          <a href={href(["threads", id])}>
            <Icon name="threads" size={14} /> {model.thread.value?.title ?? id}
          </a>
        </p>
        {missing ? <div class="transcript"><Empty title="A new thread">The first prompt begins it.</Empty></div> : <Transcript />}
        <Composer agent={agent} />
      </div>
    </Model.Provider>
  );
}

function Diff({ thread, other }: { thread: string; other: string }) {
  const found = useLive<ThreadDiff>(`${thread} ${other}`, (signal) => get<ThreadDiff>(at.thread(thread, "diff"), { other, limit: 200 }, signal), 4000);
  if (found.error !== null) return <Problem error={found.error} />;
  if (!found.value) return <div aria-busy="true" />;
  const { ours, theirs, common_message_id: common } = found.value;
  const lines = Array.from({ length: Math.max(ours.length, theirs.length) }, (_, n) => [ours[n], theirs[n]] as const);
  return (
    <div class="diff scroll" tabIndex={0} role="region" aria-label="Differences">
      <div class="diff-line diff-names">
        {[thread, other].map((each) => (
          <a key={each} href={href(["threads", each])}>
            <Icon name="threads" size={14} /> {each}
          </a>
        ))}
      </div>
      {common === null && <p class="mark">The threads have no message in common</p>}
      {lines.length === 0 && <Empty title="No differences" />}
      {lines.map(([left, right], n) => (
        <DiffLine key={n} left={left} right={right} />
      ))}
    </div>
  );
}

function DiffLine({ left, right }: { left: Message | undefined; right: Message | undefined }) {
  const [ours, theirs] = useMemo(() => diffWords(shown(left), shown(right)), [left?.id, right?.id]);
  return (
    <div class="diff-line">
      {[ [left, ours] as const, [right, theirs] as const ].map(([message, words], side) => (
        <div key={side} class={`diff-side ${message?.role ?? "none"}`}>
          {message && <span class="role">{message.role}</span>}
          <p class="plain-text">
            {words.map((each, n) => (each.changed ? <mark key={n} class={side === 0 ? "ours" : "theirs"}>{each.text}</mark> : <span key={n}>{each.text}</span>))}
          </p>
        </div>
      ))}
    </div>
  );
}

function shown(message: Message | undefined): string {
  if (!message) return "";
  const calls = message.content.flatMap((part) => (part.type === "tool_call" ? [`${part.name}(${JSON.stringify(part.arguments)})`] : part.type === "tool_result" ? [JSON.stringify(part.content)] : []));
  return [textOf(message), ...calls].filter(Boolean).join("\n");
}
