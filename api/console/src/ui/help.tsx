/** The keys of the console, as a dialog. */

import { ask } from "./dialog";

const KEYS: [string, string][] = [
  ["/", "filter the tree or the list"],
  ["↑ ↓ ← →", "move in the tree; fold and unfold"],
  ["Enter", "open the path at the cursor of the tree; send a prompt"],
  ["j, k", "select the next or the previous message"],
  ["f", "fork at the selected message"],
  ["r", "answer the selected message again"],
  ["Esc", "clear the selection"],
  ["?", "show these keys"],
];

export function showKeys(): void {
  ask({
    title: "Keys",
    body: (
      <dl class="keys">
        {KEYS.map(([key, effect]) => (
          <div class="field" key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{effect}</dd>
          </div>
        ))}
      </dl>
    ),
  });
}
