/** The page of a thread: the tree of its family, the transcript of the chosen path, and the inspector of what is selected. */

import { signal } from "@preact/signals";
import { createContext } from "preact";
import { useContext, useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { at, patch, remove } from "../api";
import { brief, count, money, tokens } from "../format";
import { go, href, place, setQuery } from "../router";
import { can } from "../session";
import type { Thread } from "../types";
import { Button, Empty, Tabs } from "../ui/bits";
import { ask, note } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { useWhileActive } from "../ui/live";
import { useTitle } from "../ui/title";
import { askFork, askRegenerate } from "./actions";
import { Composer } from "./composer";
import { Inspector } from "./inspector";
import { runOfEvent } from "./event_run";
import { ThreadModel } from "./model";
import { RUNS } from "./runs";
import { inspectedBy, type Selection, targetOf } from "./target";
import { Transcript } from "./transcript";
import { Tree } from "./tree";
import { Waterfall } from "./waterfall";

/** Milliseconds between two readings of what the stream of the thread does not tell. */
const REFRESH = 10_000;

const Model = createContext<ThreadModel | null>(null);

export function useModel(): ThreadModel {
  return useContext(Model) as ThreadModel;
}

export { Model };

type Pane = "tree" | "path" | "details";

/** The part of the page that a small screen shows. */
const pane = signal<Pane>("path");

/** Show a part of the page also on a small screen, and focus it, so that the keys go on there. */
export function show(part: "path" | "details"): void {
  pane.value = part;
  requestAnimationFrame(() => document.querySelector<HTMLElement>(part === "path" ? ".transcript" : ".details-pane")?.focus({ preventScroll: true }));
}

/** Select something: the link of the page then leads to it. */
export function select(selection: Selection | null): void {
  if (selection !== null) pane.value = selection.kind === "message" ? "path" : "details";
  setQuery({ run: null, message: null, request: null, event: null, ...(selection ? { [selection.kind]: selection.id } : {}) });
}

export function ThreadPage({ id }: { id: string }) {
  const model = useMemo(() => new ThreadModel(id), [id]);
  const filter = useRef<HTMLInputElement>(null);
  const { leaf, message, run } = targetOf(place.value.query);
  const inspected = inspectedBy(place.value.query);
  useTitle(model.thread.value?.title ?? id);
  useLayoutEffect(() => void (pane.value = inspected === null ? "path" : "details"), [id]);
  useEffect(() => {
    if (inspected !== null) pane.value = "details";
  }, [inspected]);
  useEffect(() => {
    if (message !== null) pane.value = "path";
  }, [message]);
  useEffect(() => {
    void model.open(leaf).then((undisturbed) => {
      if (undisturbed) void model.visit(targetOf(place.value.query));
      if (undisturbed !== null) void leadToEvent(model);
    });
    return () => model.close();
  }, [model]);
  useWhileActive(() => void model.refresh(), REFRESH);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) first.current = false;
    else void model.visit({ leaf, message, run });
  }, [leaf, message, run]);
  useKeys({
    "/": () => {
      filter.current?.focus();
      if (document.activeElement === filter.current) return;
      pane.value = "tree";
      requestAnimationFrame(() => filter.current?.focus());
    },
    f: () => void (can("write") && askFork(model)),
    r: () => void (can("write") && askRegenerate(model)),
    j: () => step(model, 1),
    k: () => step(model, -1),
    Escape: () => select(null),
  });
  if (model.error.value !== null) return <Empty title={`There is no thread ${id}`}><a href={href(["threads"])}>All threads</a></Empty>;
  return (
    <Model.Provider value={model}>
      <section class={`thread show-${pane.value}`}>
        <Head model={model} />
        <div class="pane-tabs">
          <Tabs
            label="Parts of the page"
            value={pane.value}
            onChange={(part) => (pane.value = part)}
            names={[["tree", "Tree"], ["path", "Transcript"], ["details", "Inspector"]]}
          />
        </div>
        <Waterfall />
        <div class="columns">
          <aside class="tree-pane" aria-label="Tree">
            <Tree filter={filter} />
          </aside>
          <div class="path-pane">
            <Transcript />
            {can("write") && <Composer />}
          </div>
          <aside class="details-pane" aria-label="Inspector" tabIndex={-1}>
            <Inspector />
          </aside>
        </div>
      </section>
    </Model.Provider>
  );
}

/** Lead a link that names only an event to its run, or say that the run is not known. Another choice ends this. */
async function leadToEvent(model: ThreadModel): Promise<void> {
  const { query } = place.value;
  const event = query.get("event");
  if (event === null || query.has("run") || model.error.value !== null) return;
  const over = new AbortController();
  const end = place.subscribe((now) => now.query !== query && over.abort());
  try {
    const run = await runOfEvent(event, [...model.runs.value.values()], over.signal);
    if (over.signal.aborted) return;
    if (run !== null) setQuery({ run, message: null, request: null });
    else note(`The link names the event ${brief(event, 40)}, but not its run. None of the newest ${RUNS} runs has this event.`, true);
  } catch (error) {
    if (over.signal.aborted) return;
    const again = (): void => {
      model.lost.value = null;
      void leadToEvent(model);
    };
    model.lost.value = { says: `The run of the event could not be read: ${(error as Error).message}`, again };
  } finally {
    end();
  }
}

function step(model: ThreadModel, by: number): void {
  const shown = model.messages.value;
  const selected = model.selection.value;
  const index = shown.findIndex((each) => each.id === selected?.id);
  const next = shown[index < 0 ? (by < 0 ? shown.length - 1 : 0) : index + by];
  if (!next) return;
  select({ kind: "message", id: next.id });
  document.getElementById(`m-${next.id}`)?.scrollIntoView({ block: "nearest" });
}

function Head({ model }: { model: ThreadModel }) {
  const thread = model.thread.value;
  const usage = thread?.usage;
  const rename = (): void =>
    ask({
      title: "Title of the thread",
      confirm: "Save",
      input: { label: "Title", value: thread?.title ?? "", optional: true },
      act: async (title) => {
        model.thread.value = await patch<Thread>(at.thread(model.id), { title: title.trim() || null });
      },
    });
  const erase = (): void =>
    ask({
      title: "Delete this thread?",
      body: <p>Runs of the thread that have not ended are cancelled. Forks of the thread keep the messages that they show.</p>,
      confirm: "Delete the thread",
      danger: true,
      act: async () => {
        await remove(at.thread(model.id), { cancel: true });
        note("Deleted");
        go(href(["threads"]));
      },
    });
  return (
    <header class="bar thread-head">
      <nav class="crumbs" aria-label="Path to the thread">
        <a href={href(["threads"])}>Threads</a>
        {thread?.parent_thread_id && (
          <>
            <Icon name="chevron" size={12} />
            <a href={href(["threads", thread.parent_thread_id])} class="crumb-parent" title={`forked from ${thread.parent_thread_id}`}>
              <Icon name="fork" size={12} /> {thread.parent_thread_id}
            </a>
          </>
        )}
        <Icon name="chevron" size={12} />
      </nav>
      <h1 title={model.id}>{thread?.title ?? model.id}</h1>
      {can("write") && <Button icon="edit" kind="quiet" label="Change the title" onClick={rename} />}
      <span class={`connection${model.connected.value ? " on" : ""}`} title={model.connected.value ? "live" : "not connected"}>
        <span class="hidden-text">{model.connected.value ? "live" : "not connected"}</span>
      </span>
      <span class="spacer" />
      {usage && usage.requests > 0 && (
        <span class="dim usage" title={count(usage.requests, "model request")}>
          {tokens(usage.input_tokens, usage.output_tokens)} tokens · {money(usage.cost)}
        </span>
      )}
      {thread && thread.parent_thread_id && can("read") && (
        <a class="button plain" href={href(["playground"], { thread: model.id, other: thread.parent_thread_id })}>
          Compare
        </a>
      )}
      {can("write") && (
        <>
          <Button icon="fork" onClick={() => askFork(model)} title="Fork (f)">
            Fork
          </Button>
          <Button kind="quiet" icon="trash" label="Delete the thread" onClick={erase} />
        </>
      )}
    </header>
  );
}
