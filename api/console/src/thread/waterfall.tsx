/** What the time of a run went into: waiting, attempts, model requests, tools, steps, waits, and HITL requests. */

import { computed, signal } from "@preact/signals";
import type { TargetedKeyboardEvent } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { at, get } from "../api";
import { count, now, seconds } from "../format";
import { isLive } from "../runs";
import { keep, kept } from "../storage";
import type { Timeline } from "../types";
import { Status } from "../ui/bits";
import { Icon } from "../ui/icons";
import { useLive } from "../ui/live";
import { lanesOf, MEANINGS, MOST_ENTRIES } from "./bars";
import type { ThreadModel } from "./model";
import { select, useModel } from "./page";

/** Pixels between two rows of bars. */
const ROW = 16;
const shown = signal(kept("localStorage", "runyard.waterfall") !== "off");

/** The run whose waterfall is shown: that of the selection, else the newest that ended without an answer or came after it, else one on the path. */
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
  const onPath = model.messages.value.findLast((each) => each.run_id !== null);
  const failed = model.unanswered.value[0];
  const later = failed && model.live.value.findLast((each) => each.accepted_at > failed.accepted_at);
  return (later ?? failed ?? onPath ?? model.live.value[0])?.run_id ?? null;
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
          keep("localStorage", "runyard.waterfall", shown.value ? "on" : "off");
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
  const [about, explain] = useState<string | null>(null);
  const line = useLive<Timeline>(`${thread} ${run}`, (signal) => get<Timeline>(at.run(thread, run, "timeline"), { limit: MOST_ENTRIES }, signal), known && isLive(known) ? 2000 : 0);
  useEffect(() => void line.refresh(), [state]);
  const time = useMemo(() => computed(() => (line.value && isLive(line.value.run) ? now.value : 0)), [line.value]);
  if (!line.value) return <span class="waterfall-body dim">{line.error !== null ? "no timeline" : ""}</span>;
  const { run: of, entries } = line.value;
  const parts: Part[] = [
    ["queued", "queued", "waited for a worker, or for an earlier run of its lane", line.value.queued_seconds],
    ["attempt", "running", "a worker executed an attempt", line.value.running_seconds],
    ["attempt bad", "lost or failed", "an attempt that failed, or whose worker died", null],
    ["suspended", "parked", "waited for a human, a time, a signal or a child, and held no worker", line.value.parked_seconds],
    ["waiting", "between attempts", "waited for the next attempt", line.value.waiting_seconds],
  ];
  const lanes = lanesOf(of, entries, time.value || Date.now());
  const bars = lanes.flatMap((lane) => lane.bars);
  const start = Math.min(...bars.map((bar) => bar.from));
  const width = Math.max(Math.max(...bars.map((bar) => bar.to)) - start, 1);
  const explained = (name: string): { onFocus: () => void; onClick: () => void } => ({ onFocus: () => explain(name), onClick: () => explain(name) });
  // what is explained below the bars, by its name
  const meanings = new Map<string, string>();
  lanes.forEach((lane) => {
    meanings.set(lane.name, `${lane.name}: ${MEANINGS[lane.name] ?? "timeline entries of this kind"}`);
    lane.bars.forEach((bar, n) => meanings.set(`${lane.name} ${n}`, bar.title));
  });
  const percent = (value: number): string => `${(100 * value) / width}%`;
  return (
    <div class="waterfall-body">
      <div class="waterfall-legend">
        <button type="button" class="link" onClick={() => select({ kind: "run", id: run })}>
          run {run.length > 18 ? `…${run.slice(-8)}` : run}
        </button>
        <Status status={of.status} />
        {parts.map(([kind, name, meaning, value]) =>
          (value === null ? bars.some((bar) => bar.kind === kind) : value >= 0.0005) ? (
            <button type="button" key={kind} class="legend" title={meaning} {...explained(`${name}: ${meaning}`)}>
              <i class={`wf-${kind}`} aria-hidden="true" /> {name} {value !== null && seconds(value)}
            </button>
          ) : null,
        )}
        {line.value.next !== null && <span class="dim">the first {count(entries.length, "entry", "entries")}</span>}
        <span class="spacer" />
        <span class="dim">{seconds(width / 1000)}</span>
      </div>
      <div class="bars" role="group" aria-label="Phases of the run" onKeyDown={walk}>
        {lanes.map((lane, row) => (
          <div key={lane.name} class="bars-lane" style={{ height: `${lane.rows * ROW + 1}px` }}>
            <button type="button" class="bars-name" title={MEANINGS[lane.name]} tabIndex={row === 0 ? 0 : -1} {...explained(lane.name)}>
              {lane.name}
            </button>
            <div class="bars-track">
              {lane.bars.map((bar, n) => (
                <button
                  type="button"
                  tabIndex={-1}
                  key={n}
                  class={`wf wf-${bar.kind}${bar.open ? " open" : ""}`}
                  title={bar.title}
                  aria-label={bar.title}
                  style={{ left: percent(bar.from - start), width: `max(3px, ${percent(bar.to - bar.from)})`, top: `${bar.row * ROW}px` }}
                  {...explained(`${lane.name} ${n}`)}
                >
                  {bar.to - bar.from > width / 12 && bar.label}
                </button>
              ))}
            </div>
          </div>
        ))}
      </div>
      <p class="bars-about" role="status">
        {about === null ? null : (meanings.get(about) ?? about)}
      </p>
    </div>
  );
}

/** A part of the legend: the kind of its bars, its name, what it means, and its seconds or null. */
type Part = [kind: string, name: string, meaning: string, value: number | null];

const STEPS: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

/** Move between the lanes and their bars. Tab leads to the first lane, and from any of them to what comes after the bars. */
function walk(event: TargetedKeyboardEvent<HTMLElement>): void {
  const by = STEPS[event.key];
  if (by === undefined) return;
  const all = [...event.currentTarget.querySelectorAll("button")];
  const index = all.indexOf(event.target as HTMLButtonElement) + by;
  all[Math.max(0, Math.min(all.length - 1, index))]?.focus();
  event.preventDefault();
}
