/** What the time of a run went into: waiting, attempts, model requests, tools, steps, waits, and HITL requests. */

import { computed, signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
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

/** The run whose waterfall is shown: that of the selection, else the newest that is on the path or ended beside it. */
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
  return (model.unanswered.value[0] ?? onPath ?? model.live.value[0])?.run_id ?? null;
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
  const line = useLive<Timeline>(`${thread} ${run}`, (signal) => get<Timeline>(at.run(thread, run, "timeline"), { limit: MOST_ENTRIES }, signal), known && isLive(known) ? 2000 : 0);
  useEffect(() => void line.refresh(), [state]);
  const time = useMemo(() => computed(() => (line.value && isLive(line.value.run) ? now.value : 0)), [line.value]);
  if (!line.value) return <span class="waterfall-body dim">{line.error !== null ? "no timeline" : ""}</span>;
  const { run: of, entries } = line.value;
  const lanes = lanesOf(of, entries, time.value || Date.now());
  const bars = lanes.flatMap((lane) => lane.bars);
  const start = Math.min(...bars.map((bar) => bar.from));
  const width = Math.max(Math.max(...bars.map((bar) => bar.to)) - start, 1);
  const percent = (value: number): string => `${(100 * value) / width}%`;
  return (
    <div class="waterfall-body">
      <div class="waterfall-legend">
        <button type="button" class="link" onClick={() => select({ kind: "run", id: run })}>
          run {run.length > 18 ? `…${run.slice(-8)}` : run}
        </button>
        <Status status={of.status} />
        <Part kind="queued" name="queued" meaning="waited for a worker, or for an earlier run of its lane" value={line.value.queued_seconds} />
        <Part kind="attempt" name="running" meaning="a worker executed an attempt" value={line.value.running_seconds} />
        {bars.some((bar) => bar.kind === "attempt bad") && <Part kind="attempt bad" name="lost or failed" meaning="an attempt whose worker died, or that failed" />}
        <Part kind="suspended" name="parked" meaning="waited for a human, a time, a signal or a child, and held no worker" value={line.value.parked_seconds} />
        <Part kind="waiting" name="between attempts" meaning="waited for the next attempt" value={line.value.waiting_seconds} />
        {line.value.next !== null && <span class="dim">the first {count(entries.length, "entry", "entries")}</span>}
        <span class="spacer" />
        <span class="dim">{seconds(width / 1000)}</span>
      </div>
      <div class="bars" role="img" aria-label={`Phases of the run: ${bars.map((bar) => bar.title).join("; ").slice(0, 900)}`}>
        {lanes.map((lane) => (
          <div key={lane.name} class="bars-lane" style={{ height: `${lane.rows * ROW + 1}px` }}>
            <span class="bars-name" title={MEANINGS[lane.name]}>
              {lane.name}
            </span>
            <div class="bars-track">
              {lane.bars.map((bar, n) => (
                <span
                  key={n}
                  class={`wf wf-${bar.kind}${bar.open ? " open" : ""}`}
                  title={bar.title}
                  style={{ left: percent(bar.from - start), width: `max(3px, ${percent(bar.to - bar.from)})`, top: `${bar.row * ROW}px` }}
                >
                  {bar.to - bar.from > width / 12 && bar.label}
                </span>
              ))}
            </div>
          </div>
        ))}
      </div>
    </div>
  );
}

function Part({ kind, name, meaning, value }: { kind: string; name: string; meaning: string; value?: number }) {
  if (value !== undefined && value < 0.0005) return null;
  return (
    <span class="legend" title={meaning}>
      <i class={`wf-${kind}`} aria-hidden="true" /> {name} {value !== undefined && seconds(value)}
    </span>
  );
}
