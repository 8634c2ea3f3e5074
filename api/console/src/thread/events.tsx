/** The events of a run, as its stream has them: stored for a day, live while it runs. */

import { useEffect, useRef, useState } from "preact/hooks";
import { at } from "../api";
import { brief, count } from "../format";
import { place, setQuery } from "../router";
import { follow } from "../sse";
import type { Run, RunEvent } from "../types";
import { Code } from "../ui/long";
import { VirtualList } from "../ui/virtual";

const MOST = 5000;

export function Events({ run }: { run: Run }) {
  const [events, setEvents] = useState<RunEvent[]>([]);
  const [cut, setCut] = useState(false);
  const kept = useRef<RunEvent[]>([]);
  const chosen = place.value.query.get("event");
  useEffect(() => {
    const over = new AbortController();
    kept.current = [];
    setCut(false);
    let drawing = 0;
    void follow(at.run(run.thread_id, run.run_id, "stream"), over.signal, (event) => {
      if (kept.current.length >= MOST) {
        setCut(true);
        return over.abort();
      }
      kept.current.push(event);
      if (drawing === 0) drawing = requestAnimationFrame(() => ((drawing = 0), setEvents([...kept.current])));
    }, { once: true });
    return () => over.abort();
  }, [run.thread_id, run.run_id]);
  const index = events.findIndex((each) => each.id !== null && each.id === chosen);
  return (
    <div class="events">
      <VirtualList
        items={events}
        height={24}
        label="Events"
        show={index}
        row={(each, n) => (
          <div role="listitem" key={n} class="event-item">
            <button type="button" class={`event-row${n === index ? " current" : ""}`} onClick={() => each.id && setQuery({ event: each.id, run: run.run_id })}>
              <code>{each.id ?? "–"}</code>
              <span class="event-type">{each.type}</span>
              <span class="dim">{brief(String(each.data.text ?? each.data.name ?? each.data.status ?? ""), 40)}</span>
            </button>
          </div>
        )}
      />
      {cut && <p class="dim">Only the first {count(MOST, "event")} are shown.</p>}
      {events[index] && <Code value={events[index]} label="Event" />}
    </div>
  );
}
