/** The actions on the selected runs, or on all that fit the filter. Each says how many before it does anything. */

import { useEffect, useRef } from "preact/hooks";
import { at, gather, get, post, type Query } from "../api";
import { brief, count } from "../format";
import { promptOf } from "../runs";
import type { Run, RunStatus } from "../types";
import { Button } from "../ui/bits";
import { ask, attempt, note } from "../ui/dialog";
import { recent } from "../ui/paged";

type Verb = "cancel" | "redrive";

const ELIGIBLE: Record<Verb, RunStatus[]> = { cancel: ["queued", "running", "suspended"], redrive: ["failed", "dead"] };
const WORDS = {
  cancel: {
    does: "Cancel",
    did: "Cancelled",
    effect: "The runs stop within about a second. They store nothing more.",
    none: "There is no run to cancel: all these runs have ended",
  },
  redrive: {
    does: "Redrive",
    did: "Redriven",
    effect: "The runs are queued again. They continue after their stored messages.",
    none: "There is no run to redrive: only failed and dead runs can be redriven",
  },
};
const STOPPED = "No run found so far. The search stopped before the oldest runs. Repeat the search for these runs.";
const MOST = 2000;
const AT_ONCE = 8;
const MOST_NAMED = 5;

export function keyOf(run: Run): string {
  return JSON.stringify([run.thread_id, run.run_id]);
}

interface BulkProps {
  chosen: Run[];
  path: string;
  query: Query & { status: string | null };
  /** Most seconds since the runs were accepted. */
  within: number | undefined;
  /** The names and values of the filters. */
  filters: string[];
  clear: () => void;
  done: () => Promise<void>;
}

export function Bulk({ chosen, path, query, within, filters, clear, done }: BulkProps) {
  const key = JSON.stringify([path, query, within]);
  const left = useRef(new Map<Verb, Left[]>());
  const over = useRef(new AbortController());
  useEffect(() => {
    left.current = new Map();
    over.current = new AbortController();
    return () => over.current.abort();
  }, [key]);
  const confirm = (verb: Verb, fit: Run[], others: number, found?: Found): void => {
    const { does, did, effect } = WORDS[verb];
    const leaving = over.current.signal;
    ask({
      title: `${does} ${count(fit.length, "run")}?`,
      body: (
        <>
          <Named runs={fit} />
          {found && <p>{filters.length > 0 ? `All runs with ${filters.join(", ")}.` : "No filter: all runs."}</p>}
          <p>
            {effect}
            {others > 0 && ` ${count(others, "other run")} stay${others === 1 ? "s" : ""} as ${others === 1 ? "it is" : "they are"}.`}
            {found && found.left.length > 0 && " The search stopped before the oldest runs. Repeat the action for these runs."}
          </p>
        </>
      ),
      confirm: `${does} ${count(fit.length, "run")}`,
      danger: verb === "cancel",
      late: true,
      act: async (_, { signal, tell }) => {
        const act = (run: Run): Promise<unknown> => post(at.run(run.thread_id, run.run_id, verb));
        const { succeeded, error } = await each(fit, act, () => signal.aborted || leaving.aborted, tell);
        if (found && succeeded === fit.length) left.current.set(verb, found.left);
        note(`${did}: ${succeeded} of ${fit.length}${error === null ? "" : `. The first error: ${error}`}`, succeeded < fit.length);
        clear();
        await done();
      },
    });
  };
  const some = (verb: Verb): Promise<boolean> =>
    attempt(async () => {
      const { signal } = over.current;
      const current: Run[] = [];
      const read = async (run: Run): Promise<unknown> => current.push(await get<Run>(at.run(run.thread_id, run.run_id), {}, signal));
      const { error } = await each(chosen, read, () => signal.aborted);
      if (signal.aborted) return;
      if (error !== null) note(error, true);
      const fit = current.filter((run) => ELIGIBLE[verb].includes(run.status));
      if (fit.length > 0) confirm(verb, fit, chosen.length - fit.length);
      else if (error === null) note(WORDS[verb].none, true);
    });
  const all = (verb: Verb): Promise<boolean> =>
    attempt(async () => {
      const { signal } = over.current;
      const statuses = ELIGIBLE[verb].filter((each) => query.status === null || query.status === each);
      const known = left.current.get(verb) ?? [];
      const from = known.length > 0 ? known : statuses.map((status) => ({ status, cursor: null }));
      const found = await search(path, { ...query, ...recent(within) }, from, signal);
      if (signal.aborted) return;
      if (found.runs.length > 0) confirm(verb, found.runs, 0, found);
      else {
        left.current.set(verb, found.left);
        note(found.left.length > 0 ? STOPPED : WORDS[verb].none, true);
      }
    });
  return (
    <div class="bulk">
      {chosen.length > 0 ? (
        <>
          <span>{count(chosen.length, "run")} selected</span>
          <Button icon="again" onClick={() => some("redrive")}>
            Redrive
          </Button>
          <Button icon="stop" onClick={() => some("cancel")}>
            Cancel
          </Button>
          <Button kind="quiet" onClick={clear}>
            Clear
          </Button>
        </>
      ) : (
        <>
          <span class="dim">{filters.length > 0 ? "All runs that match the filter:" : "All runs:"}</span>
          <Button kind="quiet" icon="again" onClick={() => all("redrive")}>
            Redrive all…
          </Button>
          <Button kind="quiet" icon="stop" onClick={() => all("cancel")}>
            Cancel all…
          </Button>
        </>
      )}
    </div>
  );
}

/** The first of the runs by their prompts: rows may have moved before the click. */
function Named({ runs }: { runs: Run[] }) {
  return (
    <ul class="named">
      {runs.slice(0, MOST_NAMED).map((run) => (
        <li key={keyOf(run)}>
          {brief(promptOf(run), 80)} <span class="dim">{brief(run.thread_id, 40)}</span>
        </li>
      ))}
      {runs.length > MOST_NAMED && <li class="dim">and {count(runs.length - MOST_NAMED, "other run")}</li>}
    </ul>
  );
}

/** What a search has not read: the runs of a status from a cursor on. */
interface Left {
  status: RunStatus;
  cursor: string | null;
}

interface Found {
  runs: Run[];
  left: Left[];
}

/** Read at most about MOST of the runs that were left. After an abort it has found nothing. */
async function search(path: string, query: Query, from: Left[], signal: AbortSignal): Promise<Found> {
  const runs = new Map<string, Run>();
  const left: Left[] = [];
  for (const { status, cursor } of from) {
    if (runs.size >= MOST) {
      left.push({ status, cursor });
      continue;
    }
    const page = await gather<Run>(path, { ...query, status }, MOST - runs.size, signal, cursor).catch((error: unknown) => {
      if (!signal.aborted) throw error;
      return { items: [], next: null };
    });
    for (const run of page.items) runs.set(keyOf(run), run);
    if (page.next !== null) left.push({ status, cursor: page.next });
  }
  return { runs: [...runs.values()], left };
}

/** Do something with each run, a few at once, until `stopped`. Returns for how many it succeeded, and the first error. */
async function each(
  runs: Run[],
  act: (run: Run) => Promise<unknown>,
  stopped: () => boolean,
  tell?: (progress: string) => void,
): Promise<{ succeeded: number; error: string | null }> {
  const result = { succeeded: 0, error: null as string | null };
  const left = [...runs];
  const turn = async (): Promise<void> => {
    for (let run = left.shift(); run !== undefined && !stopped(); run = left.shift()) {
      try {
        await act(run);
        result.succeeded += 1;
      } catch (error) {
        result.error ??= error instanceof Error ? error.message : String(error);
      }
      tell?.(`${runs.length - left.length} of ${runs.length}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, turn));
  return result;
}
