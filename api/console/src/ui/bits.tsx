/** The small parts of every page. */

import { Component, type ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { age, count, moment, now, shortId } from "../format";
import type { RunStatus } from "../types";
import { Icon, type IconName } from "./icons";

export function Status({ status, small }: { status: RunStatus | string; small?: boolean }) {
  return (
    <span class={`status s-${status}`} title={status}>
      <span class="dot" aria-hidden="true" />
      {small ? <span class="hidden-text">{status}</span> : status}
    </span>
  );
}

export function Age({ at }: { at: string | null | undefined }) {
  return (
    <time class="age" dateTime={at ?? ""} title={moment(at)}>
      {age(at, now.value)}
    </time>
  );
}

export function Id({ value }: { value: string }) {
  return (
    <code class="id" title={value}>
      {shortId(value)}
    </code>
  );
}

export function Button(props: {
  icon?: IconName;
  children?: ComponentChildren;
  onClick?: () => unknown;
  kind?: "primary" | "danger" | "quiet" | "plain";
  label?: string;
  title?: string;
  disabled?: boolean;
  type?: "button" | "submit";
  pressed?: boolean;
}) {
  const [busy, setBusy] = useState(false);
  const act = async (): Promise<void> => {
    const done = props.onClick?.();
    if (!(done instanceof Promise)) return;
    setBusy(true);
    try {
      await done;
    } finally {
      setBusy(false);
    }
  };
  return (
    <button
      type={props.type ?? "button"}
      class={`button ${props.kind ?? "plain"}${props.children ? "" : " only-icon"}`}
      disabled={props.disabled || busy}
      onClick={() => void act()}
      aria-label={props.label}
      aria-pressed={props.pressed}
      title={props.title ?? props.label}
    >
      {props.icon && <Icon name={props.icon} />}
      {props.children}
    </button>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <p>{children}</p>}
    </div>
  );
}

/** Says that a search or a filter stopped before the end of the list, and goes on when somebody asks for it. */
export function SearchEnd({ what, more }: { what: string; more: () => unknown }) {
  return (
    <p class="search-end" role="status">
      <span>{what}</span>
      <Button onClick={more}>Search further</Button>
    </p>
  );
}

/** The number of the tags that have no place. The pointer shows them. */
export function MoreTags({ tags }: { tags: [string, string][] }) {
  if (tags.length === 0) return null;
  return (
    <span class="chip" title={tags.map(([name, value]) => `${name}:${value}`).join(", ")}>
      +{tags.length}
    </span>
  );
}

/** Says that a list is longer than what is shown. `more`: whether it is. `children`: where the rest is. */
export function Bound({ shown, one, many, more, children }: { shown: number; one: string; many?: string; more: boolean; children?: ComponentChildren }) {
  if (!more) return null;
  return (
    <p class="bound">
      Only the first {count(shown, one, many)} are shown. {children}
    </p>
  );
}

export function Problem({ error }: { error: unknown }) {
  const text = error instanceof Error ? error.message : String(error);
  return (
    <p class="problem" role="alert">
      <Icon name="alert" /> {text}
    </p>
  );
}

/** Shows a problem in the place of children that cannot be drawn, so that the rest of the page stays. */
export class Boundary extends Component<{ children: ComponentChildren }, { error: unknown }> {
  override state = { error: null as unknown };

  override componentDidCatch(error: unknown): void {
    this.setState({ error });
  }

  override render(): ComponentChildren {
    if (this.state.error === null) return this.props.children;
    return (
      <div class="broken">
        <Problem error={`This part of the page cannot be shown: ${String(this.state.error)}`} />
        <Button onClick={() => this.setState({ error: null })}>Try again</Button>
      </div>
    );
  }
}

export function Field({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <div class="field">
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** A heading that shows and hides what is below it. */
export function Fold(props: { title: ComponentChildren; open?: boolean; children: ComponentChildren; class?: string }) {
  const [open, setOpen] = useState(props.open ?? false);
  return (
    <div class={`fold ${props.class ?? ""}`}>
      <button type="button" class="fold-head" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class={`chevron${open ? " open" : ""}`}>
          <Icon name="chevron" size={12} />
        </span>
        {props.title}
      </button>
      {open && <div class="fold-body">{props.children}</div>}
    </div>
  );
}

export function Tabs<T extends string>(props: {
  names: readonly (readonly [T, ComponentChildren])[];
  value: T;
  onChange: (value: T) => void;
  label: string;
}) {
  const move = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    const index = props.names.findIndex(([name]) => name === props.value) + step;
    const next = props.names[(index + props.names.length) % props.names.length];
    if (next) props.onChange(next[0]);
    event.preventDefault();
    requestAnimationFrame(() => (event.target as HTMLElement).parentElement?.querySelector<HTMLElement>("[aria-selected=true]")?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label={props.label} onKeyDown={move}>
      {props.names.map(([name, title]) => (
        <button
          type="button"
          role="tab"
          key={name}
          aria-selected={name === props.value}
          tabIndex={name === props.value ? 0 : -1}
          onClick={() => props.onChange(name)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}
