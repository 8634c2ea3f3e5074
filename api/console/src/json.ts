/** JSON whose integers keep all their digits: one that a double would round is a bigint. */

import { JSONParse, JSONStringify } from "json-with-bigint";
import type { Json } from "./types";

const MANY_DIGITS = /\d{16}/;

/** Raises SyntaxError. */
export function parse(text: string): Json {
  return (MANY_DIGITS.test(text) ? JSONParse(text) : JSON.parse(text)) as Json;
}

/** `indent`: the number of spaces per level, or 0 for one line. */
export function write(value: unknown, indent = 0): string {
  try {
    return JSON.stringify(value, null, indent) ?? "";
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // a bigint
    return JSONStringify(value, null, indent);
  }
}

/** Whether a value has no number that is too large for a double, which would be written as null. */
export function isFinite(value: Json): boolean {
  if (typeof value === "number") return Number.isFinite(value);
  return typeof value !== "object" || value === null || Object.values(value).every((each) => each === undefined || isFinite(each));
}

/** An integer in digits. */
export function integer(text: string): number | bigint {
  const value = Number(text);
  return Number.isSafeInteger(value) ? value : BigInt(text);
}
