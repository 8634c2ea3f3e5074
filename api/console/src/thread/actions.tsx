/** What a person does to a thread: fork, regenerate, edit and resend. Each leads to what it made. */

import { at, post } from "../api";
import { go, href } from "../router";
import { textOf } from "../runs";
import type { Message, Run, Thread } from "../types";
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
    body: <p>The new thread shows the messages up to this one. No message is copied, and this thread stays as it is.</p>,
    confirm: "Fork",
    input: { label: "First prompt of the fork (optional)", value: "", multiline: true, optional: true },
    act: async (text, { key }) => {
      const body = { at_message_id: message, ...(text.trim() ? { message: text } : {}) };
      const made = await post<{ thread: Thread }>(at.thread(model.id, "fork"), body, {}, key);
      note("Forked");
      go(href(["threads", made.thread.thread_id]));
    },
  });
}

/** Answer again, on a branch of its own, and show that branch. */
export function askRegenerate(model: ThreadModel, message: string | undefined = selected(model)): void {
  if (message === undefined) return;
  ask({
    title: "Answer again?",
    body: <p>A run answers on a new branch. The answer that is there stays.</p>,
    confirm: "Answer again",
    act: async (_, { key }) => {
      await post<Run>(at.thread(model.id, "regenerate"), { message_id: message }, {}, key);
      note("Answering again, on a new branch");
      showHead(model);
    },
  });
}

export function askEdit(model: ThreadModel, message: Message): void {
  ask({
    title: "Edit and resend",
    body: <p>The edited message begins a new branch beside this one.</p>,
    confirm: "Send",
    input: { label: "Message", value: textOf(message), multiline: true },
    act: async (text, { key }) => {
      await post<Run>(at.thread(model.id, "regenerate"), { message_id: message.id, message: text }, {}, key);
      showHead(model);
    },
  });
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
