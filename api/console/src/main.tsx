/** The console: its frame, and the page of the place in it. */

import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { Inbox } from "./pages/inbox";
import { Login } from "./pages/login";
import { Operate } from "./pages/operate";
import { Playground } from "./pages/playground";
import { Runs } from "./pages/runs";
import { ThreadPage } from "./thread/page";
import { Threads } from "./pages/threads";
import { href, interceptLinks, page, place } from "./router";
import { caller, can, identify, logOut, refusal } from "./session";
import { savedKey } from "./api";
import { keep, kept } from "./storage";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./styles/thread.css";
import { Boundary, Button } from "./ui/bits";
import { Dialogs, dismiss } from "./ui/dialog";
import { showKeys } from "./ui/help";
import { Icon, type IconName, Mark } from "./ui/icons";
import { useKeys } from "./ui/keys";
import { pending, watchPending } from "./pending";

type Theme = "dark" | "light";
const preferred: Theme = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
const chosen = kept("localStorage", "runyard.theme");
const theme = signal<Theme>(chosen === "dark" || chosen === "light" ? chosen : preferred);
theme.subscribe((value) => (document.documentElement.dataset.theme = value));

const PAGES: [string, string, IconName, () => boolean][] = [
  ["threads", "Threads", "threads", () => can("read")],
  ["inbox", "Inbox", "inbox", () => can("read")],
  ["runs", "Runs", "runs", () => can("read")],
  ["playground", "Playground", "play", () => can("read") && can("write")],
  ["operate", "Operate", "operate", () => can("admin")],
];

function Frame() {
  const shown = PAGES.filter(([, , , may]) => may());
  const who = caller.value;
  useEffect(watchPending, []);
  useKeys({ "?": showKeys });
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById("main")?.focus())}>
        Skip to the page
      </a>
      <nav class="side" aria-label="Pages">
        <a class="brand" href={href([])}>
          <Mark /> <span>runyard</span>
        </a>
        <ul>
          {shown.map(([name, title, icon]) => (
            <li key={name}>
              <a href={href([name])} aria-current={page.value === name ? "page" : undefined} title={title}>
                <Icon name={icon} />
                <span>{title}</span>
                {name === "inbox" && pending.value > 0 && <span class="badge">{pending.value > 99 ? "99+" : pending.value}</span>}
              </a>
            </li>
          ))}
        </ul>
        <div class="side-foot">
          <span class="who" title={`scopes: ${who?.scopes.join(", ")}`}>
            {who?.name ?? who?.id}
            {who?.tenant ? <small>{who.tenant}</small> : null}
          </span>
          <span class="hint">
            <Button icon="keys" kind="quiet" label="Keys (?)" onClick={showKeys} />
          </span>
          <Button
            icon={theme.value === "dark" ? "sun" : "moon"}
            kind="quiet"
            label={theme.value === "dark" ? "Light" : "Dark"}
            onClick={() => {
              theme.value = theme.value === "dark" ? "light" : "dark";
              keep("localStorage", "runyard.theme", theme.value);
            }}
          />
          {savedKey() !== null && <Button icon="out" kind="quiet" label="Log out" onClick={logOut} />}
        </div>
      </nav>
      <main id="main" tabIndex={-1}>
        <Boundary key={place.value.path.slice(0, 2).join(" ")}>
          <Current />
        </Boundary>
      </main>
    </div>
  );
}

function Current() {
  const [name = "threads", id] = place.value.path;
  if (!can("read")) return <p class="problem">This key does not have the scope “read”.</p>;
  if (name === "threads") return id === undefined ? <Threads /> : <ThreadPage key={id} id={id} />;
  if (name === "inbox") return <Inbox />;
  if (name === "runs") return <Runs />;
  if (name === "playground") return <Playground />;
  if (name === "operate" && can("admin")) return <Operate />;
  return (
    <p class="problem">
      There is no such page. <a href={href([])}>Threads</a>
    </p>
  );
}

function App() {
  return (
    <>
      {caller.value !== null ? <Frame /> : refusal.value !== null ? <Login /> : <div class="waiting" aria-busy="true" />}
      <Dialogs />
    </>
  );
}

caller.subscribe((who) => who === null && dismiss());
interceptLinks();
void identify();
const root = document.getElementById("app") as HTMLElement;
root.textContent = "";
render(<App />, root);
