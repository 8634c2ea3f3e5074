/** Questions to the person, and messages that go by themselves. One of each at a time. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { caller } from "../session";
import { Button, Problem } from "./bits";
import { useOnce } from "./once";

interface Question {
  title: string;
  body?: ComponentChildren;
  /** The name of the button that acts. Without one, the dialog only shows something. */
  confirm?: string;
  danger?: boolean;
  /** Whether it appears later than the person acted: Enter, which may be meant for something else, then confirms nothing. */
  late?: boolean;
  input?: { label: string; value: string; placeholder?: string; multiline?: boolean; optional?: boolean };
  act?: (value: string, doing: Doing) => Promise<unknown> | unknown;
}

export interface Doing {
  /** The Idempotency-Key of the action: the same after a failure, if the value is the same. */
  key: string;
  /** Is aborted when the person closes the dialog. */
  signal: AbortSignal;
  /** Show how far the action is. */
  tell: (progress: string) => void;
}

const asked = signal<Question | null>(null);
const notes = signal<{ id: number; text: string; bad: boolean }[]>([]);
let counter = 0;

export function ask(question: Question): void {
  if (caller.value === null) return; // it belongs to the caller who is gone
  asked.value = question;
}

/** Close the dialog and take the messages away: they belong to the caller who is gone. */
export function dismiss(): void {
  asked.value = null;
  notes.value = [];
}

export function note(text: string, bad = false): void {
  if (caller.value === null) return;
  const id = ++counter;
  notes.value = [...notes.value.slice(-3), { id, text, bad }];
  setTimeout(() => (notes.value = notes.value.filter((each) => each.id !== id)), bad ? 8000 : 4000);
}

/** Do something, and tell why it failed, unless the page ended it. Returns whether it succeeded. */
export async function attempt(action: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await action();
    if (done) note(done);
    return true;
  } catch (error) {
    const ended = error instanceof DOMException && error.name === "AbortError";
    if (!ended) note(error instanceof Error ? error.message : String(error), true);
    return false;
  }
}

export function Dialogs() {
  return (
    <>
      {asked.value && <Dialog key={asked.value.title} question={asked.value} />}
      <div class="notes" role="status" aria-live="polite">
        {notes.value.map((each) => (
          <div key={each.id} class={`note${each.bad ? " bad" : ""}`}>
            {each.text}
          </div>
        ))}
      </div>
    </>
  );
}

function Dialog({ question }: { question: Question }) {
  const element = useRef<HTMLDialogElement>(null);
  const [value, setValue] = useState(question.input?.value ?? "");
  const [error, setError] = useState<unknown>(null);
  const [progress, setProgress] = useState("");
  const over = useRef(new AbortController());
  const once = useOnce();
  const before = useRef(document.activeElement as HTMLElement | null);
  useEffect(() => {
    element.current?.showModal();
    element.current?.querySelector<HTMLElement>(`textarea, input, .dialog-foot .button:${question.danger || question.late ? "first" : "last"}-child`)?.focus();
    return () => {
      over.current.abort();
      before.current?.focus?.();
    };
  }, []);
  const close = (): void => void (asked.value = null);
  const submit = async (): Promise<void> => {
    if (once.busy) return;
    setError(null);
    try {
      await once.act(value, async (key) => question.act?.(value, { key, signal: over.current.signal, tell: setProgress }));
      if (asked.value === question) close();
    } catch (found) {
      setError(found);
    }
  };
  const ready = !question.input || question.input.optional || value.trim() !== "";
  const keys = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.repeat && (event.ctrlKey || event.metaKey || !question.input?.multiline) && ready) {
      event.preventDefault();
      void submit();
    }
  };
  // Enter that is held down opened the dialog, and does not confirm it
  const held = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && event.repeat && (event.target as Element).matches("button")) event.preventDefault();
  };
  return (
    <dialog ref={element} class="dialog" aria-labelledby="dialog-title" onClose={close} onCancel={close} onKeyDown={held}>
      <h2 id="dialog-title">{question.title}</h2>
      {question.body && <div class="dialog-body">{question.body}</div>}
      {question.input && (
        <label class="labelled">
          <span>{question.input.label}</span>
          {question.input.multiline ? (
            <textarea rows={5} value={value} onInput={(e) => setValue(e.currentTarget.value)} onKeyDown={keys} />
          ) : (
            <input value={value} placeholder={question.input.placeholder} onInput={(e) => setValue(e.currentTarget.value)} onKeyDown={keys} />
          )}
        </label>
      )}
      {progress !== "" && <p role="status">{progress}</p>}
      {error !== null && <Problem error={error} />}
      <div class="dialog-foot">
        <Button onClick={close}>{question.confirm ? "Cancel" : "Close"}</Button>
        {question.confirm && (
          <Button kind={question.danger ? "danger" : "primary"} disabled={!ready || once.busy} onClick={submit}>
            {question.confirm}
          </Button>
        )}
      </div>
    </dialog>
  );
}
