/** Texts of any length: a piece at first, and more when somebody asks for it. */

import { useMemo, useState } from "preact/hooks";
import { size } from "../format";
import { write } from "../json";
import { Button } from "./bits";
import { note } from "./dialog";

const PIECE = 20_000;
const STEP = 200_000;
const DIRECTION = /[\u202a-\u202e\u2066-\u2069]/g;

/** The text with signs in place of the characters that change its direction, and so what a person reads. */
export function visible(text: string): string {
  return text.replace(DIRECTION, (each) => `\\u${each.charCodeAt(0).toString(16)}`);
}

export function LongText({ text, class: name, as: Tag = "p" }: { text: string; class?: string; as?: "p" | "h2" }) {
  const [most, setMost] = useState(PIECE);
  return (
    <>
      <Tag class={name}>{text.slice(0, most)}</Tag>
      {text.length > most && <More left={text.length - most} show={() => setMost(most + STEP)} />}
    </>
  );
}

/** The end of a text that grows. */
export function Tail({ text, class: name }: { text: string; class?: string }) {
  return <p class={name}>{text.length > PIECE ? `… ${text.slice(-PIECE)}` : text}</p>;
}

/** A value as JSON, or a text as it is. */
export function Code({ value, label }: { value: unknown; label?: string }) {
  const [most, setMost] = useState(PIECE);
  const text = useMemo(() => visible(typeof value === "string" ? value : json(value)), [value]);
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={label ?? "JSON"}>
        {text.slice(0, most)}
      </pre>
      {text.length > most && <More left={text.length - most} show={() => setMost(most + STEP)} />}
      <Button icon="copy" kind="quiet" label="Copy" onClick={() => copy(text)} />
    </div>
  );
}

function More({ left, show }: { left: number; show: () => void }) {
  return (
    <Button kind="quiet" onClick={show}>
      Show more, {size(left)} left
    </Button>
  );
}

/** `indent`: the number of spaces per level, or 0 for one line. */
export function json(value: unknown, indent = 2): string {
  try {
    return write(value, indent);
  } catch {
    return "(nested too deeply to be shown)";
  }
}

async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    note("Copied");
  } catch {
    note("The browser allows copying only on pages with HTTPS", true);
  }
}
