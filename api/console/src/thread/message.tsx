/** One message: its text, what the model thought, the tools that it called with their results, and what a person can do with it. */

import { useMemo, useState } from "preact/hooks";
import { brief, count, seconds, size, tokens } from "../format";
import { render } from "../markdown";
import { can } from "../session";
import type { Json, Media, Message, Part, ToolCall, ToolResult } from "../types";
import { Button, Fold } from "../ui/bits";
import { Icon } from "../ui/icons";
import { Code, json, LongText, Tail } from "../ui/long";
import { askEdit, askFork, askRegenerate } from "./actions";
import type { LiveMessage } from "./live";
import { select, useModel } from "./page";

/** Text as markdown. Only the sanitiser makes HTML, and the page's policy lets nothing else make it. */
export function Markdown({ text }: { text: string }) {
  const html = render(text);
  if (html === null) {
    return (
      <>
        <p class="dim">Shown as plain text, without Markdown</p>
        <LongText class="plain-text" text={text} />
      </>
    );
  }
  return <div class="markdown" dangerouslySetInnerHTML={{ __html: html }} />;
}

/** Parts of a message that are shown at first. */
const MOST_PARTS = 100;

interface Props {
  message: Message;
  /** The results that are shown with their calls. */
  results: ReadonlyMap<ToolCall, ToolResult>;
  beside: ReadonlySet<ToolResult>;
  selected: boolean;
}

export function MessageView({ message, results, beside, selected }: Props) {
  const [most, setMost] = useState(MOST_PARTS);
  const parts = message.content.filter((part) => !(part.type === "tool_result" && beside.has(part)));
  if (message.role === "tool" && parts.length === 0) return <span id={`m-${message.id}`} />; // its results are beside the calls
  const pick = (event: MouseEvent): void => {
    if ((event.target as Element).closest("a, button, input, textarea, pre, summary") || String(getSelection()) !== "") return;
    select({ kind: "message", id: message.id });
  };
  return (
    <article
      id={`m-${message.id}`}
      class={`message ${message.role}${selected ? " selected" : ""}${message.run_status && ["failed", "cancelled", "dead"].includes(message.run_status) ? " off-path" : ""}`}
      aria-label={`${message.role} message`}
      onClick={pick}
    >
      <header class="message-head">
        <span class="role">{message.role}</span>
        {message.usage && (
          <span class="dim request-usage" title={`${message.usage.input_tokens} in, ${message.usage.output_tokens} out`}>
            {tokens(message.usage.input_tokens)} → {tokens(message.usage.output_tokens)} tokens
            {message.usage.seconds > 0 && ` · ${seconds(message.usage.seconds)}`}
          </span>
        )}
        {message.stop_reason && !["stop", "tool_calls"].includes(message.stop_reason) && <span class="chip bad">{message.stop_reason}</span>}
        <Actions message={message} />
      </header>
      {parts.slice(0, most).map((part, n) => (
        <PartView key={n} part={part} result={part.type === "tool_call" ? results.get(part) : undefined} />
      ))}
      {parts.length > most && (
        <Button kind="quiet" onClick={() => setMost(most + MOST_PARTS)}>
          Show more, {count(parts.length - most, "part")} left
        </Button>
      )}
    </article>
  );
}

function Actions({ message }: { message: Message }) {
  const model = useModel();
  return (
    <span class="message-actions">
      {can("write") && (
        <>
          {message.role === "user" && <Button kind="quiet" icon="edit" label="Edit and resend" onClick={() => askEdit(model, message)} />}
          {message.role === "assistant" && <Button kind="quiet" icon="again" label="Regenerate" onClick={() => askRegenerate(model, message.id)} />}
          <Button kind="quiet" icon="fork" label="Fork here" onClick={() => askFork(model, message.id)} />
        </>
      )}
      <Button kind="quiet" icon="link" label="Select, and link to this message" onClick={() => select({ kind: "message", id: message.id })} />
    </span>
  );
}

function PartView({ part, result }: { part: Part; result: ToolResult | undefined }) {
  if (part.type === "text") return part.text.trim() === "" ? null : <Markdown text={part.text} />;
  if (part.type === "thinking") {
    const words = part.redacted ? "redacted by the provider" : brief(part.text, 80);
    return (
      <Fold class="thinking" title={<><Icon name="brain" size={13} /> <span class="fold-words">{words || "thought"}</span></>}>
        <LongText class="thought" text={part.redacted ? "The provider encrypted this reasoning." : part.text} />
      </Fold>
    );
  }
  if (part.type === "tool_call") return <Call call={part} result={result} />;
  if (part.type === "tool_result") return <Result result={part} />;
  return <MediaView part={part} />;
}

function Call({ call, result }: { call: ToolCall; result: ToolResult | undefined }) {
  const state = result === undefined ? "open" : result.is_error ? "bad" : "done";
  const given = useMemo(() => brief(json(call.arguments, 0), 60), [call]);
  const got = useMemo(() => (result ? brief(words(result.content), 60) : ""), [result]);
  return (
    <Fold
      class={`tool ${state}`}
      title={
        <>
          <Icon name="tool" size={13} />
          <span class="tool-name">{call.name}</span>
          <span class="fold-words">{given}</span>
          {result && <span class="fold-words result-words">→ {got}</span>}
        </>
      }
    >
      <Code value={call.arguments} label="Arguments" />
      {result && <Code value={result.content as unknown} label={result.is_error ? "Error" : "Result"} />}
      {!result && <p class="dim">No result is stored.</p>}
    </Fold>
  );
}

function Result({ result }: { result: ToolResult }) {
  return (
    <Fold
      class={`tool ${result.is_error ? "bad" : "done"}`}
      title={
        <>
          <Icon name="tool" size={13} /> <span class="tool-name">{result.name ?? "result"}</span> <span class="fold-words">{brief(words(result.content), 80)}</span>
        </>
      }
    >
      <Code value={result.content as unknown} label="Result" />
    </Fold>
  );
}

function words(content: Json): string {
  return typeof content === "string" ? content : json(content, 0);
}

const SHOWN_IMAGES = /^image\/(png|jpeg|gif|webp)$/;

/** A file. Images in the message itself are shown; nothing is fetched from a URL, which is shown as text. */
function MediaView({ part }: { part: Media & { type: string } }) {
  if (part.type === "image" && part.data && SHOWN_IMAGES.test(part.media_type ?? "") && /^[A-Za-z0-9+/=_-]*$/.test(part.data)) {
    return <img class="inline-image" alt="" src={`data:${part.media_type};base64,${part.data}`} />;
  }
  return (
    <p class="media">
      <span class="chip">{part.type}</span> {part.name ?? part.url ?? part.file_id ?? part.media_type ?? ""} {part.data && <span class="dim">{size((part.data.length * 3) / 4)}</span>}
    </p>
  );
}

export function LiveView({ message }: { message: LiveMessage }) {
  return (
    <article class="message assistant writing" aria-label="assistant message, being written" aria-busy="true">
      <header class="message-head">
        <span class="role">assistant</span>
        <span class="dim">writes</span>
      </header>
      {message.thinking !== "" && (
        <Fold class="thinking" open={message.text === ""} title={<><Icon name="brain" size={13} /> <span class="fold-words">{brief(message.thinking.slice(-90), 90)}</span></>}>
          <Tail class="thought" text={message.thinking} />
        </Fold>
      )}
      {message.text !== "" && <Tail class="plain-text" text={message.text} />}
      {message.calls.map((call) => (
        <p key={call.id} class="running-tool">
          <Icon name="tool" size={13} /> {call.name} <span class="dim">{brief(call.arguments, 80)}</span>
        </p>
      ))}
      <span class="caret" aria-hidden="true" />
    </article>
  );
}
