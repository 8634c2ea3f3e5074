/** The values of the HTTP API that the console reads, as /openapi.json describes them. */

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };
export type RunStatus = "queued" | "running" | "suspended" | "completed" | "failed" | "cancelled" | "dead";
export type Scope = "read" | "write" | "respond" | "metrics" | "admin";

export interface Page<T> {
  items: T[];
  next: string | null;
}

/** A list that is one answer. */
export interface Listed<T> {
  items: T[];
  /** Whether the answer had more items than a page shows. */
  cut?: boolean;
}

export interface WhoAmI {
  tenant: string;
  id: string;
  name: string | null;
  key_id: string | null;
  scopes: Scope[];
  expires_at: string | null;
}

export interface Usage {
  requests: number;
  input_tokens: number;
  output_tokens: number;
  cost: number;
  seconds: number;
}

export interface Thread {
  thread_id: string;
  parent_thread_id: string | null;
  forked_after_run_id: string | null;
  forked_at_seq: number | null;
  agent: string | null;
  title: string | null;
  tags: Record<string, string>;
  extra: JsonObject;
  config: JsonObject;
  usage: Usage;
  created_at: string;
  updated_at: string;
  deleted_at: string | null;
}

export interface Media {
  url?: string | null;
  data?: string | null;
  media_type?: string | null;
  name?: string | null;
  file_id?: string | null;
}

export type Part =
  | { type: "text"; text: string }
  | { type: "thinking"; text: string; redacted?: boolean }
  | ({ type: "image" | "audio" | "document" | "file" } & Media)
  | ToolCall
  | ToolResult;

export interface ToolCall {
  type: "tool_call";
  id: string;
  name: string;
  arguments: JsonObject;
}

export interface ToolResult {
  type: "tool_result";
  call_id: string;
  content: Json;
  is_error: boolean;
  name: string | null;
}

export interface Message {
  id: string;
  role: "system" | "user" | "assistant" | "tool";
  content: Part[];
  run_id: string | null;
  parent_id: string | null;
  seq: number | null;
  created_at: string | null;
  run_status: RunStatus | null;
  stop_reason: string | null;
  usage: Usage | null;
  metadata: JsonObject;
}

export interface ErrorInfo {
  code: string;
  message: string;
  details: JsonObject;
  traceback?: string;
}

export interface Run {
  thread_id: string;
  run_id: string;
  kind: "prompt" | "fork" | "fork_once" | "fork_many" | "external";
  status: RunStatus;
  agent: string | null;
  queue: string;
  priority: string;
  lane: string | null;
  attempt: number;
  error_count: number;
  crash_count: number;
  input: Message | null;
  parent_id: string | null;
  after_run_id: string | null;
  options: JsonObject;
  run_at: string | null;
  expires_at: string | null;
  accepted_at: string;
  admitted_at: string | null;
  started_at: string | null;
  suspended_at: string | null;
  waiting_for: "answer" | "wait" | null;
  finished_at: string | null;
  cancel_requested_at: string | null;
  worker_id: string | null;
  app_version: string | null;
  error: ErrorInfo | null;
  result: Json;
  usage: Usage;
  metadata: JsonObject;
  trace_context: string | null;
  event_id: string | null;
}

export interface Attempt {
  fence: number;
  worker_id: string | null;
  started_at: string | null;
  ended_at: string | null;
  outcome: string;
  error: ErrorInfo | null;
}

export interface TimelineEntry {
  /** `attempt`, `message`, `model_request`, `tool`, `step`, `request`, `sleep`, `signal`, `child`, or a kind that this page does not know. */
  type: string;
  id: string;
  at: string;
  started_at: string | null;
  ended_at: string | null;
  seconds: number | null;
  fence: number | null;
  name: string | null;
  status: string | null;
  input: string | null;
  output: string | null;
  usage: Usage | null;
  error: ErrorInfo | null;
}

export interface Timeline {
  run: Run;
  error: ErrorInfo | null;
  answer: string | null;
  queued_seconds: number;
  running_seconds: number;
  parked_seconds: number;
  waiting_seconds: number;
  entries: TimelineEntry[];
  next: string | null;
}

export interface Segment {
  segment: string;
  until_seq: number | null;
}

export interface Branch {
  message_id: string;
  depth: number;
  created_at: string;
  run_id: string | null;
  run_status: RunStatus | null;
  head: boolean;
  trunk: boolean;
  labels: string[];
  path: Segment[];
}

export interface Lineage {
  thread: Thread;
  ancestors: Thread[];
  next_ancestor: string | null;
  children: Thread[];
  next_children: string | null;
}

export interface ThreadDiff {
  common_message_id: string | null;
  ours: Message[];
  theirs: Message[];
  truncated: boolean;
}

export interface HitlRequest {
  request_id: string;
  kind: "question" | "approval" | "step";
  payload: JsonObject;
  answer_schema: JsonObject | null;
  deadline_at: string | null;
  on_deadline: JsonObject | null;
  thread_id: string;
  run_id: string | null;
  agent: string | null;
  created_at: string | null;
  answer: Json;
  answered_by: string | null;
  on_behalf_of: string | null;
  answered_at: string | null;
}

export interface RunEvent {
  id: string | null;
  type: string;
  thread_id: string;
  run_id: string;
  data: JsonObject;
}

export interface Agent {
  name: string;
  queues: string[];
  workers: number;
  versions: string[];
  /** Limits of `tokens`, `cost`, `steps` and `seconds`, by name. */
  budgets: AgentBudget[] | null;
}

export interface AgentBudget {
  per: "run" | "thread";
  on_exceeded: "fail" | "ask";
  limits: Record<string, number>;
}

export interface Worker {
  worker_id: string;
  queues: string[];
  agents: Record<string, string>;
  app_version: string | null;
  slots: number;
  address: string | null;
  heartbeat_at: string | null;
  silent_for: number | null;
  dead_at: string | null;
  draining: boolean;
  blocked: { seconds: number; place: string; stack: string } | null;
  redis_outage: { since: string; reason: string } | null;
}

export interface Queue {
  queue: string;
  queued: number;
  waiting: number;
  deepest: number;
  oldest: number | null;
  scheduled: number;
  running: number;
  suspended: number;
  workers: number;
  paused_at: string | null;
  known: boolean;
}

export interface Limit {
  name: string;
  subject: string | null;
  most: number;
}

export interface Webhook {
  /** Only in the answer that made it. */
  secret?: string | null;
  webhook_id: string;
  tenant: string | null;
  url: string;
  events: string[];
  created_at: string | null;
  disabled_at: string | null;
}

export interface Delivery {
  delivery_id: string;
  webhook_id: string | null;
  url: string;
  type: string;
  thread_id: string;
  run_id: string | null;
  status: "pending" | "delivered" | "failed";
  created_at: string;
  tries: number;
  next_at: string | null;
  http_status: number | null;
  error: string | null;
}

export interface Finding {
  level: "ok" | "warn" | "fail";
  about: string;
  says: string;
  do: string;
}

export interface Candidate {
  number: number;
  status: "queued" | "running" | "parked" | "completed" | "failed" | "cancelled";
  thread_id: string | null;
  text: string;
  stop_reason: string | null;
  error: ErrorInfo | null;
}

export interface FanOutProgress {
  total: number;
  queued: number;
  running: number;
  parked: number;
  completed: number;
  failed: number;
  cancelled: number;
  usage: Usage;
}
