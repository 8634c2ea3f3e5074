/** The agents that live workers serve, read once a minute for all pages. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get } from "./api";
import { count } from "./format";
import type { Agent, Listed } from "./types";

const found = signal<Listed<Agent>>({ items: [] });
let read = 0;

function useAgents(): Listed<Agent> {
  useEffect(() => {
    if (Date.now() - read < 60_000) return;
    read = Date.now();
    get<Listed<Agent>>("v1/agents")
      .then((answer) => (found.value = answer))
      .catch(() => (read = 0));
  }, []);
  return found.value;
}

/** The choice of an agent. `none`: the words for no choice. */
export function AgentSelect({ value, none, onChange }: { value: string; none: string; onChange: (agent: string) => void }) {
  const { items, cut } = useAgents();
  return (
    <select aria-label="Agent" value={value} onChange={(e) => onChange(e.currentTarget.value)}>
      <option value="">{none}</option>
      {items.map((each) => (
        <option key={each.name}>{each.name}</option>
      ))}
      {cut && <option disabled>only the first {count(items.length, "agent")}</option>}
    </select>
  );
}
