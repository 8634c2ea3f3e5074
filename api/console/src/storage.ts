/** What the browser keeps for this console. Where it keeps nothing, this page does as long as it is open. */

type Area = "localStorage" | "sessionStorage";

const memory = new Map<string, string>();

export function kept(area: Area, name: string): string | null {
  try {
    return window[area].getItem(name);
  } catch {
    return memory.get(name) ?? null;
  }
}

export function keep(area: Area, name: string, value: string | null): void {
  try {
    if (value === null) window[area].removeItem(name);
    else window[area].setItem(name, value);
  } catch {
    if (value === null) memory.delete(name);
    else memory.set(name, value);
  }
}
