/** What the browser keeps for this console. Where it keeps nothing, this page does as long as it is open. */

type Area = "localStorage" | "sessionStorage";

const memory = new Map<string, string>();

export function kept(area: Area, name: string): string | null {
  try {
    return memory.get(name) ?? window[area].getItem(name);
  } catch {
    return null;
  }
}

export function keep(area: Area, name: string, value: string | null): void {
  memory.delete(name);
  try {
    if (value === null) window[area].removeItem(name);
    else window[area].setItem(name, value);
  } catch {
    if (value !== null) memory.set(name, value);
  }
}
