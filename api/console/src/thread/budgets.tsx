/** The budgets of a run: those that its agent's definition shows, and the one that it has reached. */

import { at, get, ifRefused } from "../api";
import { money } from "../format";
import { isLive } from "../runs";
import type { Agent, AgentBudget, HitlRequest, Run, Thread, Usage } from "../types";
import { Field } from "../ui/bits";
import { useLive } from "../ui/live";
import { useModel } from "./page";

interface Budget {
  per: string;
  name: string;
  limit: number;
  used: number;
}

export function Budgets({ run, requests }: { run: Run; requests: HitlRequest[] }) {
  const model = useModel();
  const read = async (signal: AbortSignal): Promise<Agent | null> => (run.agent === null ? null : get<Agent>(at.agent(run.agent), {}, signal).catch(ifRefused));
  const agent = useLive<Agent | null>(`agent ${run.agent}`, read, 0).value;
  const reached = reachedBy(run, requests);
  const all = [...(reached === null ? [] : [reached]), ...budgetsOf(run, definedFor(run, agent), model.thread.value)];
  const budgets = all.filter((each, n) => all.findIndex((other) => keyOf(other) === keyOf(each)) === n);
  if (budgets.length === 0) return null;
  return (
    <Field name={budgets.length === 1 ? "Budget" : "Budgets"}>
      {budgets.map((each) => (
        <span class="budget" key={keyOf(each)}>
          {told(each)}
          <meter min={0} max={each.limit} high={each.limit * 0.8} value={each.used} aria-label={`Used part of the ${each.name}`} />
        </span>
      ))}
    </Field>
  );
}

function keyOf({ per, name, limit }: Budget): string {
  return `${per} ${name} ${limit}`;
}

function told({ per, name, limit, used }: Budget): string {
  const exact = limit.toLocaleString("en", { maximumFractionDigits: 20 });
  const amounts = name === "cost" ? `${money(used)} of ${money(limit)}` : `${rounded(used)} of ${exact} ${name}`;
  return per === "thread" ? `${amounts} of the thread` : amounts;
}

function rounded(used: number): string {
  return used.toLocaleString("en", used < 100 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 0 });
}

/** The budgets of the run in its agent's definition. None if the definition can be that of another version, and none for a fan-out, because each of its probes has budgets of its own. */
function definedFor(run: Run, agent: Agent | null): AgentBudget[] {
  const same = agent?.versions.length === 1 && agent.versions[0] === run.app_version;
  return (same && run.kind === "prompt" && agent.budgets) || [];
}

const NAMES = ["tokens", "cost", "steps", "seconds"];

/** The limits with their used amounts, except those that the console cannot know: an answer may have raised a limit that is used up. */
function budgetsOf(run: Run, defined: AgentBudget[], thread: Thread | null): Budget[] {
  const used = { run: amounts(run.usage), thread: ofThread(run, thread) };
  return defined.flatMap(({ per, on_exceeded, limits }) =>
    NAMES.flatMap((name): Budget[] => {
      const [limit, amount] = [limits[name], used[per]?.[name]];
      if (limit === undefined || amount === undefined || (on_exceeded === "ask" && amount >= limit)) return [];
      return [{ per, name, limit, used: amount }];
    }),
  );
}

/** What counts for the budgets of the thread of a run. Null for a run of an ancestor, and for an ended run that the usage of the thread may lack. */
function ofThread(run: Run, thread: Thread | null): Record<string, number> | null {
  if (thread === null || thread.thread_id !== run.thread_id) return null;
  const [before, own] = [amounts(thread.usage), amounts(run.usage)];
  if (run.status === "completed") return before;
  return isLive(run) ? Object.fromEntries(NAMES.map((name) => [name, (before[name] ?? 0) + (own[name] ?? 0)])) : null;
}

/** The used amounts, by the names of the limits. */
function amounts(usage: Usage): Record<string, number> {
  return { tokens: Number(usage.input_tokens) + Number(usage.output_tokens), cost: usage.cost, steps: usage.requests, seconds: usage.seconds };
}

/** The budget that failed the run, or that the run asks to raise, with the limit that it had then. */
function reachedBy(run: Run, requests: HitlRequest[]): Budget | null {
  const asked = requests.map((each) => each.payload.budget).find((each) => typeof each === "object" && each !== null && !Array.isArray(each));
  const details = run.error?.details;
  const { per, name, limit, used } = (asked ?? (details?.budget ? { ...details, name: details.budget } : {})) as Partial<Budget>;
  if (typeof name !== "string" || typeof limit !== "number" || typeof used !== "number") return null;
  return { per: per === "thread" ? per : "run", name, limit, used };
}
