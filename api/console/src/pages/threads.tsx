/** The list of threads, the newest first. */

import { useRef } from "preact/hooks";
import { AgentSelect } from "../agents";
import { brief, count, money, tokens } from "../format";
import { go, href, place, setQuery } from "../router";
import { can } from "../session";
import type { Thread } from "../types";
import { Age, Empty, Id, MoreTags, Problem, SearchEnd } from "../ui/bits";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { usePaged } from "../ui/paged";
import { useTitle } from "../ui/title";
import { VirtualList } from "../ui/virtual";

const MOST_TAGS = 4;
const idOf = (thread: Thread): string => thread.thread_id;

export function Threads() {
  useTitle("Threads");
  const query = place.value.query;
  const agent = query.get("agent");
  const tag = query.get("tag");
  const text = (query.get("text") ?? "").toLowerCase();
  const list = usePaged<Thread>("v1/threads", { order: "newest_first", agent, tag: tag ? [tag] : [] }, idOf, 5000);
  const field = useRef<HTMLInputElement>(null);
  useKeys({ "/": () => field.current?.focus() });
  const shown = text === "" ? list.items : list.items.filter((each) => matches(each, text));
  /** Open the thread with the typed id, or the only one that fits. */
  const open = (): void => {
    const typed = (query.get("text") ?? "").trim();
    const found = list.items.find((each) => each.thread_id === typed) ?? (shown.length === 1 ? shown[0] : undefined);
    if (found || (typed !== "" && shown.length === 0)) go(href(["threads", found?.thread_id ?? typed]));
  };
  return (
    <section class="page">
      <header class="bar">
        <h1>Threads</h1>
        <div class="filters" role="search">
          <span class="search">
            <Icon name="search" />
            <input
              ref={field}
              type="search"
              placeholder="Filter by title, id or tag"
              aria-label="Filter by title, id or tag"
              value={query.get("text") ?? ""}
              onInput={(e) => setQuery({ text: e.currentTarget.value })}
              onKeyDown={(e) => {
                if (e.key === "Enter") open();
                if (e.key === "Escape") e.currentTarget.blur();
              }}
            />
          </span>
          <AgentSelect value={agent ?? ""} none="All agents" onChange={(name) => setQuery({ agent: name })} />
          {tag && (
            <button type="button" class="chip on" onClick={() => setQuery({ tag: null })}>
              {tag} <Icon name="close" size={12} />
            </button>
          )}
        </div>
        {can("write") && (
          <a class="button primary" href={href(["playground"])}>
            <Icon name="play" /> New thread
          </a>
        )}
      </header>
      {list.error !== null && <Problem error={list.error} />}
      <div class="table-head threads-row" aria-hidden="true">
        <span>Thread</span>
        <span>Agent</span>
        <span class="num">Tokens</span>
        <span class="num">Cost</span>
        <span class="num">Changed</span>
      </div>
      {shown.length > 0 ? (
        <VirtualList items={shown} height={48} label="Threads" of={idOf} onLook={text === "" ? list.look : undefined} onEnd={text === "" ? list.more : undefined} row={(each) => <Row key={each.thread_id} thread={each} />} />
      ) : (
        !list.loading &&
        list.error === null && (
          <Empty title={text !== "" && !list.ended ? "None found so far" : text || agent || tag ? "No thread matches the filter" : "No threads yet"}>
            {text ? "Enter opens the thread with this id." : <>The first prompt creates a thread. Send one in the playground, with <code>runyard prompt</code>, or through the API.</>}
          </Empty>
        )
      )}
      {text !== "" && !list.loading && !list.ended && (
        <SearchEnd what={`The filter examined the newest ${count(list.items.length, "thread")}.`} more={list.more} />
      )}
    </section>
  );
}

function matches(thread: Thread, text: string): boolean {
  const tags = Object.entries(thread.tags).map(([name, value]) => `${name}:${value}`);
  return [thread.thread_id, thread.title ?? "", ...tags].some((each) => each.toLowerCase().includes(text));
}

function Row({ thread }: { thread: Thread }) {
  const tags = Object.entries(thread.tags).filter(([name]) => name !== "title");
  return (
    <div role="listitem" class="row">
      <a class="threads-row row-link" href={href(["threads", thread.thread_id])}>
        <span class="two-lines">
          <span class="row-title">
            {thread.parent_thread_id !== null && (
              <span class="fork-mark" title={`fork of ${thread.parent_thread_id}`}>
                <Icon name="fork" size={12} />
              </span>
            )}
            {thread.title ?? thread.thread_id}
          </span>
          <span class="row-sub">
            {thread.title && <Id value={thread.thread_id} />}
            {tags.slice(0, MOST_TAGS).map(([name, value]) => (
              <span class="chip" key={name}>
                {brief(`${name}:${value}`, 32)}
              </span>
            ))}
            <MoreTags tags={tags.slice(MOST_TAGS)} />
          </span>
        </span>
        <span class="dim">{thread.agent ?? "default"}</span>
        <span class="num dim">{tokens(thread.usage.input_tokens, thread.usage.output_tokens)}</span>
        <span class="num dim">{money(thread.usage.cost)}</span>
        <span class="num dim">
          <Age at={thread.updated_at} />
        </span>
      </a>
    </div>
  );
}
