/** Who uses the console: the key, and what it may do. */

import { computed, signal } from "@preact/signals";
import { ApiError, get, onRefusal, saveKey } from "./api";
import type { Scope, WhoAmI } from "./types";

export const caller = signal<WhoAmI | null>(null);
/** Why there is no caller: null while it is asked. */
export const refusal = signal<string | null>(null);
export const operator = computed(() => can("admin") && caller.value?.tenant === "");

/** Whether the key has a scope; `admin` includes every scope. */
export function can(scope: Scope): boolean {
  const scopes = caller.value?.scopes ?? [];
  return scopes.includes(scope) || scopes.includes("admin");
}

/** Ask the API who the caller is. Without a key this succeeds if the API runs without keys. */
export async function identify(): Promise<void> {
  refusal.value = null;
  try {
    caller.value = await get<WhoAmI>("v1/whoami");
  } catch (error) {
    caller.value = null;
    const keyless = error instanceof ApiError && error.status === 401;
    refusal.value = keyless ? "" : error instanceof Error ? error.message : String(error);
  }
}

export async function logIn(key: string): Promise<boolean> {
  saveKey(key);
  await identify();
  if (caller.value !== null) return true;
  saveKey(null);
  refusal.value = refusal.value === "" ? "The API does not know this key." : refusal.value;
  return false;
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
