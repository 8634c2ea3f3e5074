/** What a person does to a thread: fork, regenerate, edit and resend. Each leads to what it made. */

import { at, post } from "../api";
import { count } from "../format";
import { go, href, staying } from "../router";
import { textOf } from "../runs";
import type { Message, Part, Run, Thread } from "../types";
import { ask, attempt, note } from "../ui/dialog";
import type { ThreadModel } from "./model";

/** The id of the selected message, which need not be shown; without one that of the end of the path. */
function selected(model: ThreadModel): string | undefined {
  const selection = model.selection.value;
  return selection?.kind === "message" ? selection.id : model.messages.value.at(-1)?.id;
}

/** Fork at a message, by default the selected one, else the end of the path. */
export function askFork(model: ThreadModel, message: string | undefined = selected(model)): void {
  if (message === undefined) return;
  ask({
    title: "Fork here",
    body: <p>The new thread shows the messages up to this one. No message is copied. This thread does not change.</p>,
    confirm: "Fork",
    input: { label: "First prompt of the fork (optional)", value: "", multiline: true, optional: true },
    act: async (text, { key, signal }) => {
      const stays = staying();
      const body = { at_message_id: message, ...(text.trim() ? { message: text } : {}) };
      const made = await post<{ thread: Thread }>(at.thread(model.id, "fork"), body, {}, key);
      note("Forked");
      if (stays() && !signal.aborted) go(href(["threads", made.thread.thread_id]));
    },
  });
}

/** Answer again, on a branch of its own, and show that branch. */
export function askRegenerate(model: ThreadModel, message: string | undefined = selected(model)): void {
  if (message === undefined) return;
  ask({
    title: "Answer again?",
    body: <p>A run answers on a new branch. The existing answer stays.</p>,
    confirm: "Answer again",
    late: true,
    act: async (_, { key, signal }) => {
      const stays = staying();
      await post<Run>(at.thread(model.id, "regenerate"), { message_id: message }, {}, key);
      note("Answering again, on a new branch");
      if (stays() && !signal.aborted) showHead(model);
    },
  });
}

export function askEdit(model: ThreadModel, message: Message): void {
  const others = message.content.filter((part) => part.type !== "text").length;
  ask({
    title: "Edit and resend",
    body: (
      <p>
        The edited message begins a new branch beside this one.
        {others > 0 && ` It also keeps ${count(others, "part")} that ${others === 1 ? "is" : "are"} not text.`}
      </p>
    ),
    confirm: "Send",
    input: { label: "Message", value: textOf(message), multiline: true },
    act: async (text, { key, signal }) => {
      const stays = staying();
      const edited = others > 0 ? { content: withText(message.content, text) } : text;
      await post<Run>(at.thread(model.id, "regenerate"), { message_id: message.id, message: edited }, {}, key);
      if (stays() && !signal.aborted) showHead(model);
    },
  });
}

/** The parts with `text` in the place of the first text, and without the other texts. */
function withText(parts: Part[], text: string): Part[] {
  const first = parts.findIndex((part) => part.type === "text");
  const others = parts.map((part, n): Part | null => (part.type !== "text" ? part : n === first ? { ...part, text } : null));
  return [...(first < 0 ? [{ type: "text", text } as const] : []), ...others.filter((part) => part !== null)];
}

/** Follow the head, which a new branch becomes. */
export function showHead(model: ThreadModel): void {
  model.to(null, true);
  if (model.leaf.value !== null) void model.show(null);
  else model.reloadSoon(100);
}

export async function cancel(run: Run): Promise<void> {
  await attempt(() => post(at.run(run.thread_id, run.run_id, "cancel")), "Cancelled");
}

export async function redrive(run: Run): Promise<void> {
  await attempt(() => post(at.run(run.thread_id, run.run_id, "redrive")), "Queued again");
}
