/** What the query of the page of a thread names. */

export type Selection = { kind: "run" | "message" | "request"; id: string };

/** What is selected. */
export function selectionOf(query: URLSearchParams): Selection | null {
  for (const kind of ["request", "message", "run"] as const) {
    const id = query.get(kind);
    if (id) return { kind, id };
  }
  return null;
}

/** The end of a path, and a message or run on it. */
export interface Target {
  leaf: string | null;
  message: string | null;
  run: string | null;
}

export function targetOf(query: URLSearchParams): Target {
  return { leaf: query.get("leaf"), message: query.get("message"), run: query.get("run") };
}

/** What the inspector shows for its own sake. A link to an event leads to its run, too. */
export function inspectedBy(query: URLSearchParams): string | null {
  const name = ["request", "event", "run"].find((each) => query.has(each));
  return name === undefined ? null : `${name} ${query.get(name)}`;
}
