/** The link from a run to its trace: a template of this browser, in which {trace_id} stands for the id. */

const TEMPLATE = "runyard.trace_url";

export function traceTemplate(): string {
  return localStorage.getItem(TEMPLATE) ?? "";
}

export function setTraceTemplate(value: string): void {
  localStorage.setItem(TEMPLATE, value);
}

export function traceLink(context: string | null): { id: string; url: string | null } | null {
  const id = /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(context ?? "")?.[1];
  if (id === undefined) return null;
  const template = traceTemplate();
  const url = /^https?:\/\//.test(template) ? template.replace("{trace_id}", id) : null;
  return { id, url };
}
