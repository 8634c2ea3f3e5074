/** Who uses the console: the key, and what it may do. */

import { computed, signal } from "@preact/signals";
import { ApiError, get, onRefusal, savedKey, saveKey } from "./api";
import type { Scope, WhoAmI } from "./types";

export const caller = signal<WhoAmI | null>(null);
/** Why there is no caller: null while it is asked for the first time. */
export const refusal = signal<string | null>(null);
export const operator = computed(() => can("admin") && caller.value?.tenant === "");

/** Whether the key has a scope; `admin` includes every scope. */
export function can(scope: Scope): boolean {
  const scopes = caller.value?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}

/** Whether this page has shown something to a caller. The next caller gets a fresh page, which has none of it in its memory. */
let used = false;

const UNKNOWN = "The API does not know this key.";

/** Ask the API who the caller is. Without a key this succeeds if the API runs without keys. Returns whether it succeeded. */
export async function identify(): Promise<boolean> {
  try {
    const found = await get<WhoAmI>("v1/whoami");
    if (used) location.reload();
    else caller.value = found;
    return (used = true);
  } catch (error) {
    caller.value = null;
    if (error instanceof ApiError && error.status === 401) {
      refusal.value = savedKey() === null ? "" : UNKNOWN;
      saveKey(null);
    } else refusal.value = error instanceof Error ? error.message : String(error);
    return false;
  }
}

export async function logIn(key: string): Promise<void> {
  refusal.value = "";
  if (/^[\x21-\x7e]+$/.test(key)) {
    saveKey(key);
    if (await identify()) return;
    saveKey(null);
  }
  refusal.value ||= UNKNOWN;
}

export function logOut(): void {
  saveKey(null);
  caller.value = null;
  refusal.value = "";
}

onRefusal(() => {
  if (caller.value === null) return;
  logOut();
  refusal.value = "The key is no longer valid.";
});
