/** The agents that live workers serve, read once a minute for all pages. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { get } from "./api";
import type { Agent } from "./types";

const found = signal<Agent[]>([]);
let read = 0;

export function useAgents(): Agent[] {
  useEffect(() => {
    if (Date.now() - read < 60_000) return;
    read = Date.now();
    get<{ items: Agent[] }>("v1/agents")
      .then((answer) => (found.value = answer.items))
      .catch(() => (read = 0));
  }, []);
  return found.value;
}
