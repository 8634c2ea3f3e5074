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
  const budgets = budgetsOf(run, requests, agent?.budgets ?? [], model.thread.value);
  if (budgets.length === 0) return null;
  return (
    <Field name={budgets.length === 1 ? "Budget" : "Budgets"}>
      {budgets.map((each) => (
        <span class="budget" key={`${each.per} ${each.name}`}>
          {told(each)}
          <meter min={0} max={each.limit} high={each.limit * 0.8} value={each.used} aria-label={`Used part of the ${each.name}`} />
        </span>
      ))}
    </Field>
  );
}

function told({ per, name, limit, used }: Budget): string {
  const amounts = name === "cost" ? `${money(used)} of ${money(limit)}` : `${Math.round(used).toLocaleString("en")} of ${limit.toLocaleString("en")} ${name}`;
  return per === "thread" ? `${amounts} of the thread` : amounts;
}

const NAMES = ["tokens", "cost", "steps", "seconds"];

function budgetsOf(run: Run, requests: HitlRequest[], defined: AgentBudget[], thread: Thread | null): Budget[] {
  const reached = reachedBy(run, requests);
  const own = amounts(run.usage);
  const before = amounts(thread?.usage);
  const counted = isLive(run) ? own : {}; // the usage of the thread has that of a run which has ended
  const all = defined.flatMap(({ per, limits }) =>
    NAMES.filter((name) => limits[name] !== undefined).map((name): Budget => {
      const used = per === "run" ? own[name] : (before[name] ?? 0) + (counted[name] ?? 0);
      return { per, name, limit: limits[name] ?? 0, used: used ?? 0 };
    }),
  );
  const others = all.filter((each) => reached === null || each.per !== reached.per || each.name !== reached.name);
  return reached === null ? others : [reached, ...others];
}

/** The used amounts, by the names of the limits. */
function amounts(usage: Usage | undefined): Record<string, number> {
  if (usage === undefined) return {};
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
