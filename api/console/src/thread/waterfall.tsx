/** What the time of a run went into: waiting, attempts, model requests, tools, and the time for which it was parked. */

import { computed, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { at, get } from "../api";
import { now, seconds } from "../format";
import { isLive } from "../runs";
import type { Run, Timeline, TimelineEntry } from "../types";
import { Status } from "../ui/bits";
import { Icon } from "../ui/icons";
import { useLive } from "../ui/live";
import type { ThreadModel } from "./model";
import { select, useModel } from "./page";

interface Bar {
  kind: string;
  lane: number;
  from: number;
  to: number;
  title: string;
  open: boolean;
}

const shown = signal(localStorage.getItem("runyard.waterfall") !== "off");

/** The run whose waterfall is shown: that of the selection, else the newest of the path. */
export function runOf(model: ThreadModel): string | null {
  const selection = model.selection.value;
  if (selection?.kind === "run") return selection.id;
  if (selection?.kind === "message") {
    const found = model.messages.value.find((each) => each.id === selection.id)?.run_id;
    if (found) return found;
  }
  if (selection?.kind === "request") {
    const found = model.requests.value.find((each) => each.request_id === selection.id)?.run_id;
    if (found) return found;
  }
  return model.messages.value.findLast((each) => each.run_id !== null)?.run_id ?? model.live.value[0]?.run_id ?? null;
}

export function Waterfall() {
  const model = useModel();
  const run = runOf(model);
  const open = shown.value;
  return (
    <div class={`waterfall${open ? "" : " closed"}`}>
      <button
        type="button"
        class="waterfall-toggle"
        aria-expanded={open}
        onClick={() => {
          shown.value = !open;
          localStorage.setItem("runyard.waterfall", shown.value ? "on" : "off");
        }}
      >
        <span class={`chevron${open ? " open" : ""}`}>
          <Icon name="chevron" size={12} />
        </span>
        Waterfall
      </button>
      {open && run !== null && <Chart key={run} thread={model.id} run={run} />}
    </div>
  );
}

function Chart({ thread, run }: { thread: string; run: string }) {
  const model = useModel();
  const known = model.runs.value.get(run);
  const state = known ? `${known.status} ${known.attempt}` : "";
  const line = useLive<Timeline>(`${thread} ${run}`, (signal) => get<Timeline>(at.run(thread, run, "timeline"), { limit: 500 }, signal), known && isLive(known) ? 2000 : 0);
  useEffect(() => void line.refresh(), [state]);
  const time = useMemo(() => computed(() => (line.value && isLive(line.value.run) ? now.value : 0)), [line.value]);
  if (!line.value) return <span class="waterfall-body dim">{line.error !== null ? "no timeline" : ""}</span>;
  const { run: of, entries } = line.value;
  const bars = barsOf(of, entries, time.value || Date.now());
  const start = Math.min(...bars.map((bar) => bar.from));
  const end = Math.max(...bars.map((bar) => bar.to));
  const width = Math.max(end - start, 1);
  const lanes = Math.max(...bars.map((bar) => bar.lane)) + 1;
  const at_ = (value: number): string => `${(100 * (value - start)) / width}%`;
  return (
    <div class="waterfall-body">
      <div class="waterfall-legend">
        <button type="button" class="link" onClick={() => select({ kind: "run", id: run })}>
          run {run.length > 18 ? `…${run.slice(-8)}` : run}
        </button>
        <Status status={of.status} />
        <Part kind="queued" name="queued" value={line.value.queued_seconds} />
        <Part kind="attempt" name="running" value={line.value.running_seconds} />
        <Part kind="parked" name="parked" value={line.value.parked_seconds} />
        <Part kind="waiting" name="between attempts" value={line.value.waiting_seconds} />
        <span class="spacer" />
        <span class="dim">{seconds(width / 1000)}</span>
      </div>
      <div class="bars" style={{ height: `${lanes * 14 + 2}px` }} role="img" aria-label={`Waterfall: ${bars.map((bar) => bar.title).join("; ").slice(0, 900)}`}>
        {bars.map((bar, n) => (
          <span
            key={n}
            class={`wf wf-${bar.kind}${bar.open ? " open" : ""}`}
            title={bar.title}
            style={{ left: at_(bar.from), width: `max(3px, ${(100 * (bar.to - bar.from)) / width}%)`, top: `${bar.lane * 14}px` }}
          />
        ))}
      </div>
    </div>
  );
}

function Part({ kind, name, value }: { kind: string; name: string; value: number }) {
  if (value < 0.0005) return null;
  return (
    <span class="legend">
      <i class={`wf-${kind}`} aria-hidden="true" /> {name} {seconds(value)}
    </span>
  );
}

/** The bars of a run: attempts and the gaps between them in the first lane, then model requests, tools and steps, and people. */
export function barsOf(run: Run, entries: TimelineEntry[], time: number): Bar[] {
  const until = run.finished_at === null ? time : Date.parse(run.finished_at);
  const moment = (value: string | null): number => (value === null ? until : Date.parse(value));
  const attempts = entries.filter((each) => each.type === "attempt");
  const due = Math.max(Date.parse(run.accepted_at), run.run_at === null ? 0 : Date.parse(run.run_at));
  const bars: Bar[] = [];
  const add = (kind: string, lane: number, from: number, to: number, title: string, open = false): void => {
    bars.push({ kind, lane, from, to: Math.max(from, to), title: `${title}, ${seconds(Math.max(0, to - from) / 1000)}`, open });
  };
  const first = attempts[0];
  add("queued", 0, due, first ? moment(first.started_at) : until, "queued", !first);
  attempts.forEach((each, n) => {
    const end = moment(each.ended_at);
    const bad = each.status === "lost" || each.status === "failed" || each.status === "dead" || each.status === "retried";
    add(bad ? "attempt bad" : "attempt", 0, moment(each.started_at), end, `attempt ${n + 1} on ${each.name ?? "?"}: ${each.status ?? ""}`, each.ended_at === null);
    const next = attempts[n + 1];
    if (each.ended_at === null || (next === undefined && run.finished_at !== null)) return;
    const gap = each.status === "suspended" ? "parked" : "waiting";
    add(gap, 0, end, next ? moment(next.started_at) : until, gap === "parked" ? "parked" : "between attempts", next === undefined);
  });
  for (const each of entries) {
    if (each.type === "model_request") add("model", 1, moment(each.started_at ?? each.at), moment(each.ended_at), `model ${each.name ?? ""}`);
    if (each.type === "tool" || each.type === "step") {
      const kind = each.status === "error" ? "tool bad" : "tool";
      add(kind, 2, moment(each.started_at ?? each.at), moment(each.ended_at), `${each.type} ${each.name ?? ""}`, each.ended_at === null);
    }
    if (each.type === "request") add("request", 3, moment(each.started_at), moment(each.ended_at), `asked: ${each.input ?? ""}`, each.ended_at === null);
  }
  const used = [...new Set(bars.map((bar) => bar.lane))].sort((a, b) => a - b);
  return bars.map((bar) => ({ ...bar, lane: used.indexOf(bar.lane) }));
}
