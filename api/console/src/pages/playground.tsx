/** The playground: choose an agent, prompt, watch, answer, fork, and compare two branches or two threads side by side. */

import { useEffect, useMemo } from "preact/hooks";
import { AgentSelect } from "../agents";
import { at, get, post } from "../api";
import { href, place, setQuery } from "../router";
import { textOf } from "../runs";
import { can } from "../session";
import type { Message, Page, Thread, ThreadDiff } from "../types";
import { Button, Empty, Id, Problem } from "../ui/bits";
import { attempt } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { useLive } from "../ui/live";
import { json } from "../ui/long";
import { useTitle } from "../ui/title";
import { Composer } from "../thread/composer";
import { ThreadModel } from "../thread/model";
import { Model } from "../thread/page";
import { Transcript } from "../thread/transcript";
import { diffWords } from "../worddiff";

export function Playground() {
  useTitle("Playground");
  const query = place.value.query;
  const thread = query.get("thread");
  const other = query.get("other");
  const agent = query.get("agent") ?? "";
  const compared = query.get("view") === "diff" && other !== null;
  const leaf = query.get("leaf");
  const otherLeaf = query.get("other_leaf");
  const alone = { other: null, other_leaf: null, view: null };
  const begin = (replace: boolean): void => setQuery({ thread: `play-${crypto.randomUUID?.().slice(0, 8) ?? Date.now()}`, leaf: null, ...alone }, replace);
  useEffect(() => {
    if (thread === null) begin(true);
  }, [thread]);
  const fork = (): Promise<boolean> =>
    attempt(async () => {
      const made = await post<{ thread: Thread }>(at.thread(thread as string, "fork"), leaf === null ? {} : { at_message_id: leaf });
      setQuery({ other: made.thread.thread_id });
    }, "Forked. Both threads take prompts.");
  if (thread === null) return null;
  return (
    <section class="page playground">
      <header class="bar">
        <h1>Playground</h1>
        <label class="inline-label">
          <span class="hidden-text">Agent</span>
          <AgentSelect value={agent} none="default agent" onChange={(name) => setQuery({ agent: name })} />
        </label>
        <span class="spacer" />
        {other !== null && (
          <Button pressed={compared} onClick={() => setQuery({ view: compared ? null : "diff" })}>
            Diff
          </Button>
        )}
        {other === null ? (
          can("write") && (
            <Button icon="fork" onClick={fork}>
              Fork beside
            </Button>
          )
        ) : (
          <Button icon="close" onClick={() => setQuery(alone)}>
            Close right side
          </Button>
        )}
        {can("write") && (
          <Button icon="play" onClick={() => begin(false)}>
            New
          </Button>
        )}
      </header>
      {compared && <Diff sides={[{ thread, leaf }, { thread: other, leaf: otherLeaf }]} />}
      {/* behind the differences the sides stay, with what somebody has typed */}
      <div class={`sides${other === null ? "" : " two"}${compared ? " gone" : ""}`}>
        <Side key={`left ${thread} ${leaf}`} id={thread} parameter="leaf" leaf={leaf} agent={agent} onSent={() => setQuery({ leaf: null })} />
        {other !== null && (
          <Side key={`right ${other} ${otherLeaf}`} id={other} parameter="other_leaf" leaf={otherLeaf} agent={agent} onSent={() => setQuery({ other_leaf: null })} />
        )}
      </div>
    </section>
  );
}

function Side({ id, parameter, leaf, agent, onSent }: { id: string; parameter: "leaf" | "other_leaf"; leaf: string | null; agent: string; onSent: () => void }) {
  const model = useMemo(() => new ThreadModel(id, parameter), [id]);
  useEffect(() => {
    void model.open(leaf);
    return () => model.close();
  }, [model]);
  const missing = model.error.value !== null;
  const sent = (): void => {
    onSent();
    // the first prompt makes the thread, which can be followed only then
    if (model.thread.value === null) void model.open(null);
  };
  return (
    <Model.Provider value={model}>
      <div class="side-pane">
        <p class="side-title">
          <a href={href(["threads", id])}>
            <Icon name="threads" size={14} /> {model.thread.value?.title ?? id}
          </a>
        </p>
        {missing ? <div class="transcript"><Empty title="A new thread">The first prompt creates it.</Empty></div> : <Transcript />}
        {can("write") && <Composer agent={agent} onSent={sent} />}
      </div>
    </Model.Provider>
  );
}

interface Path {
  thread: string;
  /** The message at its end, or null for the end of the thread. */
  leaf: string | null;
}

const COMPARED = 200;
/** Characters of each message that are compared. */
const MOST_CHARACTERS = 20_000;

function Diff({ sides: [one, two] }: { sides: [Path, Path] }) {
  const ofThreads = one.leaf === null && two.leaf === null;
  const read = (signal: AbortSignal): Promise<ThreadDiff> =>
    ofThreads
      ? get<ThreadDiff>(at.thread(one.thread, "diff"), { other: two.thread, limit: COMPARED }, signal)
      : differences(one, two, signal);
  const found = useLive<ThreadDiff>([one.thread, one.leaf, two.thread, two.leaf].join(" "), read, 4000);
  if (found.error !== null) return <Problem error={found.error} />;
  if (!found.value) return <div aria-busy="true" />;
  const { ours, theirs, common_message_id: common } = found.value;
  const lines = Array.from({ length: Math.max(ours.length, theirs.length) }, (_, n) => [ours[n], theirs[n]] as const);
  return (
    <div class="diff scroll" tabIndex={0} role="region" aria-label="Differences">
      <div class="diff-line diff-names">
        {[one, two].map((each, side) => (
          <a key={side} href={href(["threads", each.thread], { leaf: each.leaf })}>
            <Icon name="threads" size={14} /> {each.thread}
            {each.leaf !== null && <Id value={each.leaf} />}
          </a>
        ))}
      </div>
      {common === null && <p class="mark">{found.value.truncated ? `The last ${COMPARED} messages of the two sides have no message in common` : "The two sides have no message in common"}</p>}
      {lines.length === 0 && <Empty title="No differences" />}
      {lines.map(([left, right], n) => (
        <DiffLine key={n} left={left} right={right} />
      ))}
    </div>
  );
}

/** The messages of two paths after the last common one, of the last messages of each. */
async function differences(one: Path, two: Path, signal: AbortSignal): Promise<ThreadDiff> {
  const read = (path: Path): Promise<Page<Message>> =>
    get<Page<Message>>(at.thread(path.thread, "messages"), { order: "newest_first", limit: COMPARED, leaf_id: path.leaf }, signal);
  const [ours, theirs] = await Promise.all([read(one), read(two)]);
  const known = new Set(theirs.items.map((each) => each.id));
  const common = ours.items.find((each) => known.has(each.id))?.id ?? null;
  const after = (page: Page<Message>): Message[] => {
    const end = page.items.findIndex((each) => each.id === common);
    return page.items.slice(0, end < 0 ? undefined : end).reverse();
  };
  return { common_message_id: common, ours: after(ours), theirs: after(theirs), truncated: common === null && (ours.next ?? theirs.next) !== null };
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
  const calls = message.content.flatMap((part) => (part.type === "tool_call" ? [`${part.name}(${json(part.arguments, 0)})`] : part.type === "tool_result" ? [typeof part.content === "string" ? part.content : json(part.content, 0)] : []));
  const text = [textOf(message), ...calls].filter(Boolean).join("\n");
  return text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS)} …` : text;
}
