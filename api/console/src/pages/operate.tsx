/** What operators look after: queues, workers, limits, webhooks and their deliveries, and the findings of the doctor. */

import { useState } from "preact/hooks";
import { at, gather, type Gathered, get, post, put, remove } from "../api";
import { count, seconds } from "../format";
import { integer } from "../json";
import { go, href, place } from "../router";
import { operator } from "../session";
import type { Delivery, Finding, Json, Limit, Listed, Queue, Webhook, Worker } from "../types";
import { Age, Bound, Button, Empty, Fold, Problem, Status, Tabs } from "../ui/bits";
import { ask, attempt } from "../ui/dialog";
import { useLive } from "../ui/live";
import { Code } from "../ui/long";
import { usePaged } from "../ui/paged";
import { useTitle } from "../ui/title";

const PARTS = [
  ["queues", "Queues"],
  ["workers", "Workers"],
  ["limits", "Limits"],
  ["webhooks", "Webhooks"],
  ["doctor", "Doctor"],
] as const;

/** Entries of a list that is not read as somebody scrolls. */
const MOST = 1000;

type PartName = (typeof PARTS)[number][0];

export function Operate() {
  const asked = (place.value.path[1] ?? "queues") as PartName;
  const parts = PARTS.filter(([name]) => operator.value || (name !== "limits" && name !== "doctor"));
  const part = parts.some(([name]) => name === asked) ? asked : "queues";
  useTitle(`Operate ${part}`);
  return (
    <section class="page">
      <header class="bar">
        <h1>Operate</h1>
        <Tabs label="Parts of the deployment" names={parts} value={part} onChange={(name) => go(href(["operate", name]))} />
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label={part}>
        {part === "queues" && <Queues />}
        {part === "workers" && <Workers />}
        {part === "limits" && <Limits />}
        {part === "webhooks" && <Webhooks />}
        {part === "doctor" && <Doctor />}
      </div>
    </section>
  );
}

function Queues() {
  const list = useLive<Gathered<Queue>>("queues", (signal) => gather<Queue>("v1/queues", {}, MOST, signal), 2500);
  if (list.error !== null) return <Problem error={list.error} />;
  const queues = list.value?.items ?? [];
  if (list.value && queues.length === 0) return <Empty title="No queues yet">A queue appears with its first run or worker.</Empty>;
  const act = (queue: string, verb: "pause" | "resume"): Promise<unknown> =>
    attempt(() => post(at.queue(queue, verb)), verb === "pause" ? `Paused ${queue}` : `Resumed ${queue}`).then(list.refresh);
  return (
    <>
    <Bound shown={queues.length} one="queue" more={list.value !== null && list.value.next !== null} />
    <table>
      <thead>
        <tr>
          <th>Queue</th>
          <th class="num" title="due runs that wait for a worker or for an earlier run of their lane">Queued</th>
          <th class="num" title="the longest wait of a queued run">Oldest</th>
          <th class="num" title="queued runs that need only a worker">For a worker</th>
          <th class="num" title="runs that are not due yet">Scheduled</th>
          <th class="num" title="runs that workers execute">Running</th>
          <th class="num" title="runs that wait for a human, a time, a signal or a child">Suspended</th>
          <th class="num" title="live workers that serve the queue">Workers</th>
          <th />
        </tr>
      </thead>
      <tbody>
        {queues.map((each) => (
          <tr key={each.queue}>
            <td>
              <a href={href(["runs"], { queue: each.queue })}>{each.queue}</a> {each.paused_at && <span class="chip warn">paused <Age at={each.paused_at} /></span>}
              {!each.known && <span class="chip warn" title="a run names this queue, but no agent and no worker has this queue">unknown</span>}
            </td>
            <td class="num">{each.queued}</td>
            <td class={`num${each.waiting > 0 && (each.oldest ?? 0) > 60 ? " warn-text" : ""}`}>{each.oldest === null ? "–" : seconds(each.oldest)}</td>
            <td class="num">{each.waiting}</td>
            <td class="num">{each.scheduled}</td>
            <td class="num">{each.running}</td>
            <td class="num">{each.suspended}</td>
            <td class={`num${each.workers === 0 ? " bad-text" : ""}`}>{each.workers}</td>
            <td class="actions-cell">
              {operator.value &&
                (each.paused_at ? (
                  <Button icon="play" onClick={() => act(each.queue, "resume")}>
                    Resume
                  </Button>
                ) : (
                  <Button icon="pause" onClick={() => act(each.queue, "pause")}>
                    Pause
                  </Button>
                ))}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
    </>
  );
}

function stateOf(worker: Worker): string {
  if (worker.dead_at !== null) return "dead";
  if (worker.blocked !== null) return "blocked";
  if (worker.draining) return "draining";
  return (worker.silent_for ?? 0) > 15 ? "silent" : "live";
}

function Workers() {
  const list = useLive<Listed<Worker>>("workers", (signal) => get<Listed<Worker>>("v1/workers", {}, signal), 2500);
  if (list.error !== null) return <Problem error={list.error} />;
  const workers = [...(list.value?.items ?? [])].sort((a, b) => Number(a.dead_at !== null) - Number(b.dead_at !== null));
  if (list.value && workers.length === 0) return <Empty title="No workers">Runs wait until a worker starts: <code>runyard worker</code>.</Empty>;
  const drain = (worker: Worker): void =>
    ask({
      title: `Drain ${worker.worker_id}?`,
      body: <p>The worker claims no more runs. It ends when its current runs have ended.</p>,
      confirm: "Drain",
      act: async () => {
        await post(at.worker(worker.worker_id, "drain"));
        await list.refresh();
      },
    });
  const stacks = async (worker: Worker): Promise<void> => {
    const found = await get<{ stacks: string }>(at.worker(worker.worker_id, "stacks"));
    ask({ title: `Stacks of ${worker.worker_id}`, body: <Code value={found.stacks} label="Stacks" /> });
  };
  return (
    <>
    <Bound shown={workers.length} one="worker" more={list.value?.cut === true} />
    <table>
      <thead>
        <tr>
          <th>Worker</th>
          <th>State</th>
          <th>Queues</th>
          <th>Agents</th>
          <th class="num">Slots</th>
          <th>Version</th>
          <th class="num">Heartbeat</th>
          <th />
        </tr>
      </thead>
      <tbody>
        {workers.map((each) => (
          <tr key={each.worker_id} class={each.dead_at ? "off" : ""}>
            <td>
              <code>{each.worker_id}</code>
              {each.blocked && (
                <Fold title={each.dead_at
                    ? <span class="dim">main loop was blocked at {each.blocked.place} when the worker was declared dead</span>
                    : <span class="bad-text">main loop blocked for {seconds(each.blocked.seconds)} at {each.blocked.place}</span>}>
                  <Code value={each.blocked.stack} label="Stack" />
                </Fold>
              )}
              {each.redis_outage && (each.dead_at
                ? <p class="dim">Redis was not reached when the worker was declared dead: {each.redis_outage.reason}</p>
                : <p class="warn-text">Redis has not been reached for <Age at={each.redis_outage.since} />: {each.redis_outage.reason}</p>)}
            </td>
            <td>
              <Status status={stateOf(each)} />
            </td>
            <td>{each.queues.join(", ")}</td>
            <td class="dim">{Object.keys(each.agents).slice(0, 6).join(", ")}{Object.keys(each.agents).length > 6 && ` +${Object.keys(each.agents).length - 6}`}</td>
            <td class="num">{each.slots}</td>
            <td class="dim">{each.app_version ?? "–"}</td>
            <td class="num">{each.dead_at ? <><Age at={each.dead_at} /> ago</> : each.silent_for === null ? "–" : `${seconds(each.silent_for)} ago`}</td>
            <td class="actions-cell">
              {operator.value && each.dead_at === null && each.address !== null && (
                <Button kind="quiet" onClick={() => attempt(() => stacks(each))}>
                  Stacks
                </Button>
              )}
              {operator.value && each.dead_at === null && !each.draining && <Button onClick={() => drain(each)}>Drain</Button>}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
    </>
  );
}

const LIMITS = ["queued", "queued_per_tenant", "queued_per_lane", "queued_seconds", "message_bytes", "running_per_agent", "running_per_tenant"];

function Limits() {
  const list = useLive<Listed<Limit>>("limits", (signal) => get<Listed<Limit>>("v1/limits", {}, signal), 10_000);
  const [name, setName] = useState(LIMITS[0] as string);
  const [subject, setSubject] = useState("");
  const [most, setMost] = useState("");
  if (list.error !== null) return <Problem error={list.error} />;
  const set = async (): Promise<void> => {
    const body = (): Json => ({ most: integer(most), ...(subject.trim() ? { subject: subject.trim() } : {}) });
    if (await attempt(() => put(`v1/limits/${name}`, body()), "Set")) setMost("");
    await list.refresh();
  };
  const clear = (limit: Limit): Promise<unknown> => attempt(() => remove(`v1/limits/${limit.name}`, { subject: limit.subject }), "Removed").then(list.refresh);
  return (
    <>
      <Bound shown={list.value?.items.length ?? 0} one="limit" more={list.value?.cut === true} />
      {list.value?.items.length === 0 ? (
        <Empty title="No limits">The numbers of queued and running runs are not limited.</Empty>
      ) : (
        <table>
          <thead>
            <tr>
              <th>Limit</th>
              <th>Of</th>
              <th class="num">At most</th>
              <th />
            </tr>
          </thead>
          <tbody>
            {(list.value?.items ?? []).map((each) => (
              <tr key={`${each.name} ${each.subject}`}>
                <td>
                  <code>{each.name}</code>
                </td>
                <td>{each.subject ?? <span class="dim">each</span>}</td>
                <td class="num">{each.most.toLocaleString("en")}</td>
                <td class="actions-cell">
                  <Button onClick={() => clear(each)}>Remove</Button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <form class="inline-form" onSubmit={(event) => (event.preventDefault(), void set())}>
        <select aria-label="Limit" value={name} onChange={(e) => setName(e.currentTarget.value)}>
          {LIMITS.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
        {/_per_(tenant|agent)$/.test(name) && (
          <input aria-label="Tenant or agent" placeholder="tenant or agent (each)" value={subject} onInput={(e) => setSubject(e.currentTarget.value)} />
        )}
        <input aria-label="At most" type="number" min={0} placeholder="at most" value={most} onInput={(e) => setMost(e.currentTarget.value)} />
        <Button type="submit" kind="primary" disabled={most === ""}>
          Set
        </Button>
      </form>
    </>
  );
}

function Webhooks() {
  const list = useLive<Gathered<Webhook>>("webhooks", (signal) => gather<Webhook>("v1/webhooks", {}, MOST, signal), 10_000);
  const [status, setStatus] = useState("");
  const deliveries = usePaged<Delivery>("v1/webhook_deliveries", { status }, (each) => `${each.delivery_id} ${each.webhook_id}`, 4000, 50);
  if (list.error !== null) return <Problem error={list.error} />;
  const add = (): void =>
    ask({
      title: "Send events to a URL",
      body: <p>An event is sent when a run ends or is suspended. The receiver verifies the signature with the webhook's secret.</p>,
      confirm: "Add",
      input: { label: "URL", value: "https://" },
      act: async (url, { key }) => {
        const made = await post<Webhook>("v1/webhooks", { url }, {}, key);
        await list.refresh();
        if (made.secret) showSecret(made.url, made.secret);
      },
    });
  const drop = (webhook: Webhook): void =>
    ask({
      title: "Remove this webhook?",
      body: <p>Deliveries to {webhook.url} that have not been sent are dropped.</p>,
      confirm: "Remove",
      danger: true,
      act: async () => {
        await remove(at.webhook(webhook.webhook_id));
        await list.refresh();
      },
    });
  return (
    <>
      <div class="part-head">
        <h2>Subscriptions</h2>
        <Button onClick={add}>Add…</Button>
      </div>
      <Bound shown={list.value?.items.length ?? 0} one="webhook" more={list.value !== null && list.value.next !== null} />
      {list.value?.items.length === 0 ? (
        <p class="dim pad">No subscriptions. A run can also name its own webhook URL.</p>
      ) : (
        <table>
          <tbody>
            {(list.value?.items ?? []).map((each) => (
              <tr key={each.webhook_id}>
                <td class="break">{each.url} {each.disabled_at && <span class="chip bad">disabled <Age at={each.disabled_at} /> ago</span>}</td>
                <td class="dim">{each.events.join(", ")}</td>
                <td>{each.tenant === null ? "all tenants" : each.tenant}</td>
                <td class="actions-cell">
                  <Button onClick={() => drop(each)}>Remove</Button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      <div class="part-head">
        <h2>Deliveries</h2>
        <select aria-label="Status of deliveries" value={status} onChange={(e) => setStatus(e.currentTarget.value)}>
          <option value="">All</option>
          <option>pending</option>
          <option>delivered</option>
          <option>failed</option>
        </select>
      </div>
      {deliveries.error !== null && <Problem error={deliveries.error} />}
      {deliveries.items.length === 0 && !deliveries.loading && <p class="dim pad">No deliveries.</p>}
      {deliveries.items.length > 0 && (
        <table>
          <tbody>
            {deliveries.items.map((each) => (
              <tr key={`${each.delivery_id} ${each.webhook_id}`}>
                <td>
                  <Status status={each.status === "delivered" ? "completed" : each.status === "failed" ? "failed" : "queued"} small /> {each.type}
                </td>
                <td>
                  <a href={href(["threads", each.thread_id], { run: each.run_id })}>{each.thread_id}</a>
                </td>
                <td class="break dim">{each.url}</td>
                <td class="num">{count(each.tries, "try", "tries")}</td>
                <td class="dim">{each.http_status ?? ""} {each.error ?? ""}</td>
                <td class="num">
                  <Age at={each.created_at} />
                </td>
                <td class="actions-cell">
                  {each.status !== "pending" && (
                    <Button onClick={() => attempt(() => post(at.redelivery(each.delivery_id)), "Sent again").then(deliveries.refresh)}>Redeliver</Button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {!deliveries.ended && (
        <button type="button" class="more" onClick={deliveries.more}>
          Show more
        </button>
      )}
    </>
  );
}

function showSecret(url: string, secret: string): void {
  ask({
    title: "Secret of the webhook",
    body: (
      <>
        <p>The receiver at {url} verifies the signature of each delivery with this secret. The console shows the secret only once.</p>
        <Code value={secret} label="Secret" />
      </>
    ),
  });
}

/** A text in which commands are between backticks. */
function WithCode({ text }: { text: string }) {
  return <>{text.split("`").map((piece, n) => (n % 2 ? <code key={n}>{piece}</code> : piece))}</>;
}

const SIGN = { ok: "completed", warn: "queued", fail: "failed" } as const;

function Doctor() {
  const found = useLive<Listed<Finding>>("doctor", (signal) => get("v1/doctor", {}, signal), 15_000);
  if (found.error !== null) return <Problem error={found.error} />;
  const items = [...(found.value?.items ?? [])].sort((a, b) => "fwo".indexOf(a.level[0] as string) - "fwo".indexOf(b.level[0] as string));
  return (
    <>
      {!found.value && <p class="dim pad" aria-busy="true">The doctor examines the deployment …</p>}
      <Bound shown={items.length} one="finding" more={found.value?.cut === true} />
      <ul class="findings">
        {items.map((each, n) => (
          <li key={n} class={`finding f-${each.level}`}>
            <Status status={SIGN[each.level]} small />
            <strong>{each.about}</strong>
            <span>
              <WithCode text={each.says} />
              {each.do && (
                <span class="finding-do">
                  <WithCode text={each.do} />
                </span>
              )}
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
