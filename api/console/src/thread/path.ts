/** The messages of a path in chunks, and the results of its tool calls. */

import type { Message, ToolCall, ToolResult } from "../types";

export interface Chunk {
  key: string;
  messages: Message[];
}

/** Messages of a page of a path. */
export const PAGE = 60;

/** Chunks that end with the messages of `end`: those from before it stay, unless messages between them may be missing. */
export function withEnd(chunks: Chunk[], end: Message[]): Chunk[] {
  const newest = { key: "newest", messages: end };
  const kept: Chunk[] = [];
  for (const chunk of chunks) {
    const index = chunk.messages.findIndex((each) => each.id === end[0]?.id);
    if (index < 0) {
      kept.push(chunk);
      continue;
    }
    return [...(index > 0 ? withHead(kept, chunk.messages.slice(0, index)) : kept), newest];
  }
  return [newest];
}

/** Chunks with further messages: in the last chunk, unless it has a page of them. */
function withHead(chunks: Chunk[], head: Message[]): Chunk[] {
  const last = chunks.at(-1);
  if (last === undefined || last.messages.length >= PAGE) return [...chunks, { key: head[0]?.id ?? "", messages: head }];
  return [...chunks.slice(0, -1), { ...last, messages: [...last.messages, ...head] }];
}

/** The results of the tool calls of a path. Models may use the id of a call again. */
export function resultsOf(messages: Message[]): Map<ToolCall, ToolResult> {
  const calls = new Map<string, ToolCall>();
  const found = new Map<ToolCall, ToolResult>();
  for (const part of messages.flatMap((each) => each.content)) {
    if (part.type === "tool_call") calls.set(part.id, part);
    const call = part.type === "tool_result" ? calls.get(part.call_id) : undefined;
    if (call && part.type === "tool_result") found.set(call, part);
  }
  return found;
}
