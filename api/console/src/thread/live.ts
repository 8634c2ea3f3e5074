/** The messages that runs are writing, from the events of their streams. */

import { ENDS } from "../sse";
import type { JsonObject, Message, Run, RunEvent } from "../types";

export interface LiveMessage {
  id: string;
  run_id: string;
  text: string;
  thinking: string;
  calls: { id: string; name: string; arguments: string }[];
}

export interface LiveTool {
  call_id: string;
  run_id: string;
  name: string;
}

export interface Writing {
  messages: ReadonlyMap<string, LiveMessage>;
  tools: ReadonlyMap<string, LiveTool>;
}

export const NOTHING: Writing = { messages: new Map(), tools: new Map() };

/** The state after an event. The same object if the event changes nothing. */
export function after(state: Writing, event: RunEvent): Writing {
  const data = event.data;
  const id = typeof data.message_id === "string" ? data.message_id : `of ${event.run_id}`;
  if (event.type === "message.started" || event.type === "message.delta") {
    const messages = new Map(state.messages);
    const before = messages.get(id) ?? { id, run_id: event.run_id, text: "", thinking: "", calls: [] };
    messages.set(id, event.type === "message.delta" ? withDelta(before, data) : before);
    return { ...state, messages };
  }
  if (event.type === "message.completed") {
    const messages = new Map(state.messages);
    const removed = messages.delete(id);
    return messages.delete(`of ${event.run_id}`) || removed ? { ...state, messages } : state;
  }
  if (event.type === "tool.started") {
    const call = String(data.call_id);
    return { ...state, tools: new Map(state.tools).set(call, { call_id: call, run_id: event.run_id, name: String(data.name) }) };
  }
  if (event.type === "tool.completed") {
    const tools = new Map(state.tools);
    return tools.delete(String(data.call_id)) ? { ...state, tools } : state;
  }
  if (event.type === "run.rewound" || ENDS.test(event.type)) return without(state, event.run_id);
  return state;
}

/**
 * The state without stored messages, and without what runs wrote that are not running: the events that say so may be lost.
 * `before`: the state before the messages and the runs were read. What began later stays.
 */
export function settled(state: Writing, before: Writing, stored: Message[], runs: ReadonlyMap<string, Run>): Writing {
  const ids = new Set(stored.map((each) => each.id));
  const stopped = (run: string): boolean => (runs.get(run)?.status ?? "running") !== "running";
  const messages = [...state.messages].filter(([id, each]) => !before.messages.has(id) || !(ids.has(id) || stopped(each.run_id)));
  const tools = [...state.tools].filter(([id, each]) => !before.tools.has(id) || !stopped(each.run_id));
  if (messages.length === state.messages.size && tools.length === state.tools.size) return state;
  return { messages: new Map(messages), tools: new Map(tools) };
}

function without(state: Writing, run: string): Writing {
  const messages = [...state.messages].filter(([, each]) => each.run_id !== run);
  const tools = [...state.tools].filter(([, each]) => each.run_id !== run);
  return { messages: new Map(messages), tools: new Map(tools) };
}

function withDelta(before: LiveMessage, data: JsonObject): LiveMessage {
  const made = { ...before };
  if (typeof data.text === "string") made.text += data.text;
  if (typeof data.thinking === "string") made.thinking += data.thinking;
  const call = data.tool_call as { id?: string; name?: string } | undefined;
  if (call && typeof call.id === "string") {
    const piece = typeof data.arguments === "string" ? data.arguments : "";
    const known = made.calls.find((each) => each.id === call.id);
    made.calls = known
      ? made.calls.map((each) => (each === known ? { ...each, arguments: each.arguments + piece } : each))
      : [...made.calls, { id: call.id, name: call.name ?? "", arguments: piece }];
  }
  return made;
}

/** Whether an event of a run was seen before: ids are `<fence>-<n>` and grow. */
export class Seen {
  private last = new Map<string, [number, number]>();

  has(event: RunEvent): boolean {
    if (event.id === null) return false;
    const [fence = 0, n = 0] = event.id.split("-").map(Number);
    const before = this.last.get(event.run_id);
    if (before && (fence < before[0] || (fence === before[0] && n <= before[1]))) return true;
    this.last.set(event.run_id, [fence, n]);
    return false;
  }
}
