/** The link from a run to its trace: a template of this browser, in which {trace_id} stands for the id. */

import { signal } from "@preact/signals";
import { keep, kept } from "../storage";
import { ask } from "../ui/dialog";

const TEMPLATE = "runyard.trace_url";
const template = signal(kept("localStorage", TEMPLATE) ?? "");

export function askTraceTemplate(): void {
  ask({
    title: "Link to traces",
    body: "{trace_id} stands for the id of the run's trace. This browser keeps the link.",
    confirm: "Save",
    input: { label: "URL", value: template.value, placeholder: "https://traces.example.org/trace/{trace_id}", optional: true },
    act: (value) => {
      const url = value.trim();
      if (url !== "" && linkTo(url, "") === null) throw new Error("A link begins with https:// or http://");
      template.value = url;
      keep("localStorage", TEMPLATE, url);
    },
  });
}

export function traceLink(context: string | null): { id: string; url: string | null } | null {
  const id = /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(context ?? "")?.[1];
  return id === undefined ? null : { id, url: linkTo(template.value, id) };
}

/** The URL of a trace. Null unless the browser would go to a web server. */
function linkTo(pattern: string, id: string): string | null {
  try {
    const url = new URL(pattern.replaceAll("{trace_id}", id));
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
