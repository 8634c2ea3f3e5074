// Calls a running API through Acontext's own TypeScript client: `use_sdk.ts <url> <key>`. Prints the id of its session.

import assert from "node:assert/strict";
import { AcontextClient, APIError, FileUpload, MessagePart, buildAcontextMessage } from "@acontext/acontext";

const [url, key] = process.argv.slice(2);
const client = new AcontextClient({ apiKey: key, baseUrl: `${url}/api/v1` });
assert.equal(await client.ping(), "pong");

const made = await client.sessions.create({ configs: { agent: "typescript" }, disableTaskTracking: true });
assert.deepEqual([made.configs, made.disable_task_tracking, made.space_id], [{ agent: "typescript" }, true, null]);
const plain = await client.sessions.create();
assert.deepEqual([plain.configs, plain.disable_task_tracking], [null, false]);
const listed = await client.sessions.list({ limit: 1 });
assert.deepEqual([listed.items.length, listed.has_more], [1, true]);
const rest = await client.sessions.list({ cursor: listed.next_cursor });
assert.deepEqual([...listed.items, ...rest.items].map((each) => each.id).slice(-2), [made.id, plain.id]);
await client.sessions.updateConfigs(made.id, { configs: { agent: "other" } });
assert.deepEqual((await client.sessions.getConfigs(made.id)).configs, { agent: "other" });

// Each format, and back.
const blobs = {
  openai: [
    { role: "user", content: [{ type: "text", text: "see" }, { type: "image_url", image_url: { url: "data:image/png;base64,aGk=" } }] },
    {
      role: "assistant",
      content: null,
      tool_calls: [{ id: "c1", type: "function", function: { name: "look", arguments: "{ }" } }],
    },
    { role: "tool", tool_call_id: "c1", content: "a cat" },
  ],
  anthropic: [
    { role: "user", content: "think" },
    { role: "assistant", content: [{ type: "thinking", thinking: "hm", signature: "s" }, { type: "text", text: "yes" }] },
  ],
  gemini: [
    { role: "user", parts: [{ text: "hello" }] },
    { role: "model", parts: [{ functionCall: { name: "look", args: { at: 1 } } }] },
  ],
} as const;
for (const [format, messages] of Object.entries(blobs)) {
  const session = await client.sessions.create();
  const ids: string[] = [];
  for (const blob of messages) {
    ids.push((await client.sessions.storeMessage(session.id, blob, { format: format as keyof typeof blobs })).id);
  }
  const read = await client.sessions.getMessages(session.id, { format: format as keyof typeof blobs, timeDesc: false });
  assert.deepEqual([read.items, read.ids, read.has_more], [messages, ids, false]);
  const newest = await client.sessions.getMessages(session.id, { format: format as keyof typeof blobs, limit: 1 });
  assert.deepEqual([newest.ids, newest.has_more], [ids.slice(-1), true]);
}

const said = buildAcontextMessage({
  role: "user",
  parts: ["look", new MessagePart({ type: "data", meta: { n: 1 } }), MessagePart.fileFieldPart("picture")],
  meta: { page: 1 },
});
const file = new FileUpload({ filename: "a.png", content: Buffer.from("hi"), contentType: "image/png" });
const stored = await client.sessions.storeMessage(made.id, said, { format: "acontext", file, fileField: "picture" });
assert.deepEqual([stored.meta, stored.parent_id, stored.session_id], [{ page: 1 }, null, made.id]);
assert.deepEqual(stored.parts[2]?.meta, { type: "base64", media_type: "image/png", data: "aGk=" });
const [item] = (await client.sessions.getMessages(made.id, { format: "acontext" })).items as { id: string; parts: unknown[] }[];
assert.deepEqual([item?.id, item?.parts], [stored.id, stored.parts]);

// The parameters that the client lacks.
const tree = await client.sessions.create();
const store = async (n: number, parent?: string): Promise<string> => {
  const blob = { role: n % 2 ? "user" : "assistant", content: `M${n}` };
  const jsonData = { format: "openai", blob, ...(parent === undefined ? {} : { parent_id: parent }) };
  return (await client.request<{ id: string }>("POST", `/session/${tree.id}/messages`, { jsonData })).id;
};
const ids: string[] = [];
for (let n = 1; n <= 6; n++) ids.push(await store(n));
ids.push(await store(7, ids[1]), await store(8));
type Leaves = { leaves: { message_id: string; depth: number }[] };
const branches = await client.request<Leaves>("GET", `/session/${tree.id}/branches`);
assert.deepEqual(branches.leaves.map((leaf) => [leaf.message_id, leaf.depth]), [[ids[5], 6], [ids[7], 4]]);
const params = { leaf_id: ids[5] as string, format: "openai" };
const branch = await client.request<{ ids: string[] }>("GET", `/session/${tree.id}/messages`, { params });
assert.deepEqual(branch.ids, ids.slice(0, 6));
assert.deepEqual((await client.sessions.getMessages(tree.id, { timeDesc: false })).ids, [...ids.slice(0, 2), ...ids.slice(6)]);

await client.sessions.delete(plain.id);
await assert.rejects(client.sessions.getMessages(plain.id), (error: unknown) => {
  assert(error instanceof APIError);
  assert.deepEqual([error.statusCode, error.code, error.error], [404, 404, "thread_not_found"]);
  return true;
});
console.log(made.id);
