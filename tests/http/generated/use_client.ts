// Calls operations of a running API through openapi-fetch, with the types that openapi-typescript made: `use_client.ts <url> <key>`.
// Type checked before it runs: what an operation answers has the type that is written here.

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./api.d.ts";

type Schemas = components["schemas"];

const [url, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${key}` } });
const thread = { params: { path: { thread_id: "typescript" } } };

function found<T>(answer: { data?: T; error?: unknown }): T {
  assert.equal(answer.error, undefined);
  assert(answer.data !== undefined);
  return answer.data;
}

// A union that `type` tells apart.
function words(event: Schemas["Event"]): string {
  switch (event.type) {
    case "message.delta":
      return event.data.text ?? "";
    case "run.failed":
      return event.data.error?.message ?? "";
    case "hitl.requested":
      return event.data.request.request_id;
    default:
      return "";
  }
}

const made: Schemas["Thread"] = found(await client.POST("/v1/threads", { body: { thread_id: "typescript", title: "one" } }));
assert.equal(made.title, "one");
const changed: Schemas["Thread"] = found(await client.PATCH("/v1/threads/{thread_id}", { ...thread, body: { title: "two" } }));
assert.equal(changed.title, "two");
const told: Schemas["Message"] = found(
  await client.POST("/v1/threads/{thread_id}/messages", { ...thread, body: { message: "by the way" } }),
);
assert.equal(told.seq, 1);

const run: Schemas["Run"] = found(
  await client.POST("/v1/threads/{thread_id}/runs", { ...thread, body: { message: "say hello", run_id: "r1" } }),
);
assert.equal(run.run_id, "r1");
const one = { params: { path: { thread_id: "typescript", run_id: "r1" } } };
const stopped = found(await client.GET("/v1/threads/{thread_id}/runs/{run_id}/wait", one));
assert("text" in stopped && stopped.text === "hello" && stopped.run.status === "completed");
const runs: Schemas["RunPage"] = found(await client.GET("/v1/threads/{thread_id}/runs", thread));
assert.deepEqual(runs.items.map((each) => each.run_id), ["r1"]);
const said = found(await client.GET("/v1/threads/{thread_id}/messages", thread)) as Schemas["MessagePage"];
const part = said.items.at(-1)?.content[0];
assert(part?.type === "text" && part.text === "hello");
const branches: Schemas["BranchPage"] = found(await client.GET("/v1/threads/{thread_id}/branches", thread));
assert.equal(branches.items[0]?.depth, 3);

const waits = found(
  await client.POST("/v1/threads/{thread_id}/runs/wait", { ...thread, body: { message: "ask color?", run_id: "r2" } }),
);
assert("requests" in waits && waits.run.status === "suspended");
const answered: Schemas["HitlRequest"] = found(
  await client.POST("/v1/threads/{thread_id}/respond", { ...thread, body: { answer: "blue" } }),
);
assert.equal(answered.answer, "blue");
const two = { params: { path: { thread_id: "typescript", run_id: "r2" } } };
found(await client.GET("/v1/threads/{thread_id}/runs/{run_id}/wait", two));

const streamed = await client.GET("/v1/threads/{thread_id}/runs/{run_id}/stream", { ...one, parseAs: "text" });
const events = (streamed.data as unknown as string)
  .split("\n")
  .filter((line) => line.startsWith("data: "))
  .map((line) => JSON.parse(line.slice(6)) as Schemas["Event"]);
assert.equal(events.map(words).join(""), "hello");

const forked = found(
  await client.POST("/v1/threads/{thread_id}/fork", { ...thread, body: { new_thread_id: "ts-fork", after_run_id: "r1" } }),
);
assert("thread" in forked && forked.thread.parent_thread_id === "typescript");
const fork = { params: { path: { thread_id: "ts-fork" } } };
assert.equal((await client.DELETE("/v1/threads/{thread_id}", fork)).response.status, 204);
const gone = await client.GET("/v1/threads/{thread_id}", fork);
assert.equal(gone.error?.code, "thread_not_found");
