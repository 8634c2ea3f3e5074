/** The messages of a path in chunks, the search for the path of a message, and the results of tool calls. */

import { at, get, ifRefused } from "../api";
import type { Branch, Message, Page, ToolCall, ToolResult } from "../types";

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

/** The messages at the end of a path with those that were added while it was read. */
export function withAdded(end: Message[], added: Message[]): Message[] {
  const known = new Set(end.map((each) => each.id));
  const all = [...end];
  for (const each of added) if (!known.has(each.id) && each.parent_id === (all.at(-1)?.id ?? null)) all.push(each);
  return all;
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

/** The branch that a message is on, by the name of its last message, and the pages of that path from the message to its end. */
export interface Found {
  leaf: Branch;
  chunks: Chunk[];
  older: string | null;
}

/** Reads a page of the path to a message, the newest messages first. */
export type Read = (leaf: string, cursor: string | null) => Promise<Page<Message>>;

/** The leaves to search for the path of a message: those of the shown path first, then the head, then the newest. */
export function inOrder(leaves: readonly Branch[], message: string, shown: Branch | null): Branch[] {
  const order = (each: Branch): number => (each.message_id === message ? 3 : each === shown ? 2 : each.head ? 1 : 0);
  const all = leaves.filter((each) => each.depth > 0);
  return all.sort((a, b) => order(b) - order(a) || (a.created_at < b.created_at ? 1 : -1));
}

/** The id of the last message of a run. None: it has no messages, as a fork job. */
export async function lastMessage(thread: string, run: string, over: AbortSignal): Promise<string | undefined> {
  const outcome = await get<{ messages?: Message[] }>(at.run(thread, run, "wait"), { wait: 0 }, over).catch(ifRefused);
  return outcome?.messages?.at(-1)?.id;
}

/** The branch that has a message. Null if it is not found in `most` pages. `leaves`: those that are searched first are first. */
export async function pathOf(message: Message, leaves: readonly Branch[], read: Read, most: number): Promise<Found | null> {
  const seq = message.seq ?? 0;
  const searched = new Set<string>();
  for (const leaf of leaves) {
    // two paths through one segment have the same messages in it: one of them is searched
    const part = leaf.path.find((each) => each.until_seq === null || each.until_seq >= seq);
    const segment = leaf.path.length === 0 ? leaf.message_id : part?.segment;
    if (segment === undefined || searched.has(segment)) continue;
    searched.add(segment);
    const chunks: Chunk[] = [];
    let cursor: string | null = null;
    do {
      if (--most < 0) return null;
      const page: Page<Message> = await read(leaf.message_id, cursor);
      chunks.unshift({ key: cursor ?? "newest", messages: page.items.reverse() });
      cursor = page.next;
      if (page.items.some((each) => each.id === message.id)) return { leaf, chunks, older: cursor };
    } while (cursor !== null && (chunks[0]?.messages[0]?.seq ?? 0) > seq);
  }
  return null;
}
