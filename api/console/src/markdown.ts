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

const kept = new Map<string, string>();

/** The HTML of a text, sanitised. The last texts are kept: a list draws the same text again when it scrolls. */
export function render(text: string): string {
  const found = kept.get(text);
  if (found !== undefined) return found;
  const made = DOMPurify.sanitize(marked.parse(text) as string, ALLOWED) as unknown as string;
  if (kept.size > 500) kept.delete(kept.keys().next().value as string);
  kept.set(text, made);
  return made;
}
