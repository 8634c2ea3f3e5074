/** The next prompt. On a path that does not end at the head it continues that path. */

import { useState } from "preact/hooks";
import { AgentSelect } from "../agents";
import { at, post } from "../api";
import { staying } from "../router";
import type { Run } from "../types";
import { Button } from "../ui/bits";
import { attempt } from "../ui/dialog";
import { useOnce } from "../ui/once";
import { useModel } from "./page";

export function Composer({ agent: fixed, onSent }: { agent?: string; onSent?: () => void }) {
  const model = useModel();
  const [text, setText] = useState("");
  const [agent, setAgent] = useState("");
  const [beside, setBeside] = useState(false);
  const once = useOnce();
  const leaf = model.leaf.value;
  const send = async (): Promise<void> => {
    const message = text.trim();
    if (message === "" || once.busy) return;
    const chosen = fixed ?? agent;
    const body = {
      message: text,
      ...(chosen ? { agent: chosen } : {}),
      ...(leaf !== null ? { parent_id: leaf } : {}),
      ...(beside ? { parallel: true } : {}),
    };
    const stays = staying("leaf", "other_leaf", "thread", "other");
    const sent = await attempt(() => once.act(JSON.stringify(body), (key) => post<Run>(at.thread(model.id, "runs"), body, {}, key)));
    if (!sent) return;
    setText("");
    if (!stays()) return;
    if (onSent !== undefined) onSent();
    else if (leaf !== null) model.to(null, true); // what was selected would lead back to its branch
    model.reloadSoon(0);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <textarea
        aria-label="Prompt"
        placeholder={leaf === null ? "Prompt" : "Prompt, after the last message of this path"}
        rows={Math.min(8, Math.max(2, text.split("\n").length))}
        value={text}
        readOnly={once.busy}
        onInput={(e) => setText(e.currentTarget.value)}
        onKeyDown={(e) => {
          if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
            e.preventDefault();
            if (!e.repeat) void send();
          }
          if (e.key === "Escape") e.currentTarget.blur();
        }}
      />
      <div class="composer-foot">
        {fixed === undefined && <AgentSelect value={agent} none={model.thread.value?.agent ?? "default agent"} onChange={setAgent} />}
        <label class="checked" title="The run does not wait for other runs of the thread. It writes to a separate branch.">
          <input type="checkbox" checked={beside} onChange={(e) => setBeside(e.currentTarget.checked)} />
          <span>parallel</span>
        </label>
        <span class="spacer" />
        <span class="dim hint">Enter sends. Shift+Enter begins a new line.</span>
        <Button kind="primary" type="submit" icon="send" disabled={text.trim() === "" || once.busy}>
          Send
        </Button>
      </div>
    </form>
  );
}
