/**
 * Markdown to HTML. HTML inside Markdown is shown as text. Only what the sanitiser returns reaches the page: it drops scripts,
 * styles, forms, frames, images and ids.
 */

import DOMPurify from "dompurify";
import { Marked } from "marked";

const marked = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  // The sanitiser's parser would report a style in the text as a violation of the policy, although it applies nowhere.
  renderer: { html: ({ text }) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;") },
  walkTokens: (token) => {
    // the page has the first two levels
    if (token.type === "heading") token.depth = Math.min(6, (token.depth as number) + 2);
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a"],
    ...["h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
  ],
  ALLOWED_ATTR: ["href", "start", "align"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_TRUSTED_TYPE: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

const kept = new Map<string, string | null>();
/** Most characters of the kept texts and their HTML. */
const MOST_KEPT = 8_000_000;
let size = 0;

const MOST_TEXTS = 500;
const MOST_CHARACTERS = 40_000;
/**
 * Milliseconds after which a text is slow, and for how many of them slow texts may take before long ones stay as they are.
 * Each millisecond that passes makes up for a part of a slow one.
 */
const SLOW = 50;
const MOST_SLOW = 2_000;
const RECOVERY = 0.05;
const SHORT_CHARACTERS = 1_000;
let slow = 0;
let counted = 0;

/**
 * The HTML of a text, sanitised, or null if the text is shown as it is: if it is long, nested too deeply, or made to take long.
 * The last texts are kept: a list draws the same text again when it scrolls.
 */
export function render(text: string): string | null {
  const found = kept.get(text);
  if (found !== undefined) return found;
  const began = performance.now();
  slow = Math.max(0, slow - RECOVERY * (began - counted));
  counted = began;
  if (text.length > (slow > MOST_SLOW ? SHORT_CHARACTERS : MOST_CHARACTERS)) return null;
  const made = sanitised(text);
  const took = performance.now() - began;
  if (took > SLOW) slow += took;
  kept.set(text, made);
  size += text.length + (made?.length ?? 0);
  for (const [oldest, html] of kept) {
    if (kept.size <= MOST_TEXTS && size <= MOST_KEPT) break;
    kept.delete(oldest);
    size -= oldest.length + (html?.length ?? 0);
  }
  return made;
}

function sanitised(text: string): string | null {
  try {
    return DOMPurify.sanitize(marked.parse(text) as string, ALLOWED) as unknown as string;
  } catch {
    return null; // the parser calls itself for each level
  }
}
