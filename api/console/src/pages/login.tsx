/** The login by API key. The key stays in the session storage of this tab. */

import { useState } from "preact/hooks";
import { logIn, refusal } from "../session";
import { Button, Problem } from "../ui/bits";
import { Mark } from "../ui/icons";
import { useTitle } from "../ui/title";

export function Login() {
  useTitle("Log in");
  const [key, setKey] = useState("");
  return (
    <main class="login">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void logIn(key.trim());
        }}
      >
        <h1>
          <Mark /> runyard
        </h1>
        <label class="labelled">
          <span>API key</span>
          <input
            type="password"
            autocomplete="off"
            placeholder="ry_…"
            value={key}
            onInput={(e) => setKey(e.currentTarget.value)}
            autofocus
          />
        </label>
        {refusal.value && <Problem error={refusal.value} />}
        <Button kind="primary" type="submit" disabled={key.trim() === ""}>
          Log in
        </Button>
        <p class="dim">
          <code>runyard keys create NAME</code> creates a key. The browser keeps the key in this tab. It sends the key only to this server.
        </p>
      </form>
    </main>
  );
}
