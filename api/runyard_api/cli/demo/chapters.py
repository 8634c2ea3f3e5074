"""The chapters of the demo. Each chapter shows a guarantee on real servers and checks it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from runyard import Client
from runyard.client.run_handle import RunHandle, RunResult
from runyard.domain.states import RunStatus
from runyard.models import Event, JsonValue, Run
from runyard.ports.commands import ForkRequest

from ..dev.worker_processes import WorkerProcesses, pid_of
from ..view.live_run import Printer
from ..view.output import escape, question
from .agents import MODEL, says

if TYPE_CHECKING:
    from ..commands.demo import Stage

THREAD: Final = "trip"
FORK: Final = "trip-by-train"
RUN_SECONDS: Final = 20.0 if MODEL is None else 120.0
"""Maximum seconds of one run of the demo."""
SAMPLES: Final = 15
MEASURED: Final = "figures-"
"""The beginning of the ids of the threads that are measured."""
WHERE: Final = "Three days off. Where to?"
THREE: Final = {"hotel": "Find me a hotel", "museum": "And a museum", "beach": "And a beach"}
PACK: Final = "What should I pack?"
HOME: Final = "And if we just stayed at home?"
TRAIN: Final = "I would rather go by train"


async def prompt(stage: Stage, client: Client) -> None:
    stage.chapter("A prompt", f'runyard prompt {THREAD} "…" --stream')
    stage.say(f"[bold blue]{WHERE}[/]")
    handle = await client.enqueue(THREAD, WHERE, "first")
    await _type(stage, handle)
    result = await handle.result(RUN_SECONDS)
    stage.check(result.ok and says(WHERE, result.text), "the answer streamed and is stored")


async def order(stage: Stage, client: Client) -> None:
    stage.chapter("Three prompts at once", "one thread runs one of them at a time, in order")
    handles = [await client.enqueue(THREAD, text, run_id) for run_id, text in THREE.items()]
    await asyncio.gather(*(handle.result(RUN_SECONDS) for handle in handles))
    runs = [await handle.run() for handle in handles]
    zero, end = runs[0].started_at, runs[-1].finished_at
    assert zero and end
    scale = min(60.0, 60 / max((end - zero).total_seconds(), 0.001))
    for run in runs:
        assert run.started_at and run.finished_at
        begun, ended = ((moment - zero).total_seconds() for moment in (run.started_at, run.finished_at))
        bar = " " * round(begun * scale) + "█" * max(round((ended - begun) * scale), 1)
        times = f"{begun * 1000:.0f}–{ended * 1000:.0f} ms"
        stage.say(f"{run.run_id:<8}[cyan]{bar}[/] [bright_black]{times} {escape(run.worker_id or '')}[/]")
    pairs = list(itertools.pairwise(runs))
    stage.check(
        all(_starts_after(later, earlier) for earlier, later in pairs), "each run began after the one before it had ended"
    )
    again = await client.enqueue(THREAD, THREE["hotel"], "hotel")
    stage.check(not again.created, "enqueueing a run id again executes nothing")


async def fork(stage: Stage, client: Client) -> None:
    stage.chapter("A fork", f"runyard fork {THREAD} {FORK} --after first")
    before = await _texts(client, THREAD)
    began = time.perf_counter()
    made = await client.fork(THREAD, FORK, "first", title="By train")
    stage.say(f"[bright_black]made in {(time.perf_counter() - began) * 1000:.1f} ms; no message was copied[/]")
    stage.check(await _texts(client, FORK) == before[:2], f"{FORK} remembers the first run and nothing after it")
    stage.check(await _texts(client, THREAD) == before and made.parent_thread_id == THREAD, f"{THREAD} is unchanged")
    await asyncio.gather(_run(client, THREAD, PACK), _run(client, FORK, TRAIN))
    source, child = await _texts(client, THREAD), await _texts(client, FORK)
    stage.check(says(PACK, source[-1]) and says(TRAIN, child[-1]), "both threads continue, each on its own")
    stage.check(len(child) == 4 and len(source) == len(before) + 2, "neither thread sees the messages of the other")


async def approval(stage: Stage, client: Client) -> None:
    stage.chapter("An approval", f"runyard respond {FORK} --approve")
    handle = await client.enqueue(FORK, "Book the sleeper", "booking")
    result = await handle.result(RUN_SECONDS)
    stage.check(result.status is RunStatus.SUSPENDED, "the run is suspended: it holds no worker and no lock while it waits")
    asked = (await client.requests(FORK)).items
    stage.say(f"[magenta]? {escape(question(asked[0]))}[/]")
    await client.respond(FORK, True, response_id="ok-1")
    result = await handle.result(RUN_SECONDS)
    said = f"after the approval the run continued: “{escape(result.last_text)}”"
    stage.check(result.ok and "berth 31" in _results(result), said)
    await client.respond(FORK, True, asked[0].request_id, response_id="ok-1")
    stage.check((await handle.run()).attempt == 2, "the same answer again changes nothing")


async def probe(stage: Stage, client: Client) -> None:
    stage.chapter("A probe", f'runyard fork-once {THREAD} "…"')
    before = await _texts(client, THREAD)
    stage.say(f"[bold blue]{HOME}[/]")
    answer = await client.fork_once(THREAD, HOME, "first", agent="adviser", wait=RUN_SECONDS)
    stage.say(escape(answer.text))
    stage.check(answer.stop_reason == "stop" and len(answer.messages) == 2, "the answer came from a snapshot")
    stage.check(await _texts(client, THREAD) == before, "the probe wrote to no thread")


async def crash(stage: Stage, client: Client, pool: WorkerProcesses) -> None:
    stage.chapter("A crash", "kill -9 of the worker in mid-run")
    handle = await client.enqueue(THREAD, "Settle the bill", "bill")
    await _until(handle, "message.completed", role="tool")
    victim = await handle.run()
    os.kill(int(pid_of(victim.worker_id or "")), signal.SIGKILL)
    killed = time.perf_counter()
    stage.say(f"[red]✗ worker {escape(victim.worker_id or '')} is dead[/]")
    resumed = await _until(handle, "run.rewound", "run.resumed", "run.completed")
    stage.figure("crash → running again", [resumed - killed], "kill -9 to the next attempt on the other worker")
    heir = await handle.run()
    stage.say(f"[green]● worker {escape(heir.worker_id or '')} continues from the last stored message[/]")
    result = await handle.result(RUN_SECONDS)
    moved = heir.worker_id not in (None, victim.worker_id)
    stage.check(result.ok and moved and result.run.attempt == 2, "the run finished on the other worker")
    calls = sum(len(message.tool_calls) for message in result.messages)
    stage.check((calls, len(_results(result))) == (1, 1), "its tool was called once, and every message is stored once")
    pool.dead()


async def measure(stage: Stage, client: Client) -> None:
    """Measure several starts, answers and forks. Keep the medians for the table at the end."""
    picked_up: list[float] = []
    answered: list[float] = []
    forked: list[float] = []
    for n in range(SAMPLES):
        run = await _run(client, f"{MEASURED}{n}", "ok", agent="echo")
        assert run.started_at
        picked_up.append((run.started_at - run.accepted_at).total_seconds())
        answered.append(await _answered(client, f"{MEASURED}{n}"))
    for n in range(SAMPLES):
        request = ForkRequest(src=f"{MEASURED}0", new=f"{MEASURED}0-{n}")
        began = time.perf_counter()
        await client.backend.threads.fork(request)
        forked.append(time.perf_counter() - began)
    stage.figure("accept → running", picked_up, "on an idle queue, by the clock of Postgres")
    stage.figure("answer → running again", answered, "of a suspended run, by the clock of Postgres")
    stage.figure("fork", forked, "a new thread that shares its parent's messages")


async def _type(stage: Stage, handle: RunHandle) -> None:
    """Print the answer of a run while it streams."""
    stage.console.print("   ", end="")
    printer = Printer(stage.console)
    async for event in handle.stream():
        printer.show(event)
    printer.finish()


async def _until(handle: RunHandle, *types: str, role: str | None = None) -> float:
    """Wait for an event with one of ``types`` after the last stop of the run. Return the time at which the first such event
    arrived (perf_counter).

    ``role``: the role of the event's message, or None for any event.
    """
    async with asyncio.timeout(RUN_SECONDS), aclosing(handle.stream((await handle.run()).event_id)) as events:
        async for event in events:
            if event.type in types and (role is None or _role(event) == role):
                break
    return time.perf_counter()


def _role(event: Event) -> object:
    message = event.data.get("message")
    return message.get("role") if isinstance(message, dict) else None


def _results(result: RunResult) -> list[JsonValue]:
    """Return the results of the run's tool calls."""
    return [part.content for message in result.messages for part in message.tool_results]


async def _run(client: Client, thread_id: str, text: str, agent: str | None = None) -> Run:
    handle = await client.enqueue(thread_id, text, agent=agent)
    return (await handle.result(RUN_SECONDS)).raise_for_status().run


async def _answered(client: Client, thread_id: str) -> float:
    """Return the seconds from the commit of an answer to the claim of the next attempt."""
    handle = await client.enqueue(thread_id, "hello", agent="doubtful")
    await handle.result(RUN_SECONDS)
    answer = await client.respond(thread_id, "yes")
    run = (await handle.result(RUN_SECONDS)).raise_for_status().run
    assert run.started_at and answer.answered_at
    return (run.started_at - answer.answered_at).total_seconds()


async def _texts(client: Client, thread_id: str) -> list[str]:
    return [message.text for message in (await client.messages(thread_id)).items]


def _starts_after(later: Run, earlier: Run) -> bool:
    return bool(later.started_at and earlier.finished_at and later.started_at >= earlier.finished_at)
