"""An Agent with a thread id and no checkpointer keeps its threads in ``runyard.db`` of the working directory (R1)."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runyard import Agent, App, Message
from runyard.agents.channels import CheckpointedChannel
from runyard.checkpointer import MemoryCheckpointer, SQLiteCheckpointer
from runyard.errors import BackendUnavailableError, CapabilityMissingError, DataCorruptedError, ThreadNotFoundError
from runyard.hitl import ask_user_tool
from runyard.testing import Harness
from tests.support.scripted_models import answering, calling, echo

# A connection that is collected without its end fails its test.
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

FILE = "runyard.db"
QUESTION = {"questions": [{"question": "Which one?"}]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder: Path) -> list[str]:
    """Return the names of the files in ``folder``. A write-ahead log shows an open connection."""
    return sorted(path.name for path in folder.iterdir())


async def stored(thread_id: str) -> list[str]:
    async with SQLiteCheckpointer(FILE) as cp:
        data = await cp.load(thread_id)
    return [message.text for message in data.messages] if data is not None else []


async def test_r1_threads_outlive_the_agent(folder: Path) -> None:
    await Agent(echo(), thread_id="t").prompt("a")
    agent = Agent(echo(), thread_id="t")
    await agent.prompt("b")
    assert [message.text for message in agent.state.messages] == ["a", "a!", "b", "b!"] == await stored("t")
    assert files(folder) == [FILE]


async def test_r1_without_a_thread_id_no_file_is_made(folder: Path) -> None:
    agent = Agent(echo())
    await agent.prompt("a")
    await agent.prompt("b")
    Agent(echo(), thread_id="t")
    with pytest.raises(CapabilityMissingError, match="thread_id"):
        await agent.fork(after_run_id="r")
    await Agent(echo(), thread_id="t", checkpointer=MemoryCheckpointer("given")).prompt("c")
    channel = CheckpointedChannel(checkpointer=MemoryCheckpointer("given"), thread_id="of-channel", run_id="r")
    await Agent(echo(), channel=channel).prompt("d", run_id="r")
    assert files(folder) == []


async def test_agent_in_a_worker_does_not_use_the_file(folder: Path) -> None:
    async with Harness(App(agents={"default": Agent(echo(), thread_id="t")})) as harness:
        assert (await harness.prompt("t", "hi")).text == "hi!"
    assert files(folder) == []


async def test_forks_and_probes_name_threads_of_the_file(folder: Path) -> None:
    run = await Agent(echo(), thread_id="t").prompt("a")
    agent = Agent(echo())
    await agent.fork(src_thread_id="t", new_thread_id="u", after_run_id=run)
    assert (await agent.fork_once(src_thread_id="u", message="b", after_run_id=run)).text == "b!"
    assert await stored("u") == ["a", "a!"]
    with pytest.raises(ThreadNotFoundError):
        await agent.fork(src_thread_id="absent", after_run_id=run)
    assert files(folder) == [FILE]


async def test_h1_a_question_waits_in_the_file(folder: Path) -> None:
    def agent() -> Agent:
        return Agent(calling(("ask_user", QUESTION)), tools=[ask_user_tool()], thread_id="t")

    run = await agent().prompt("a")
    other = agent()
    [asked] = await other.pending()
    assert asked.run_id == run and files(folder) == [FILE]
    assert await other.respond({"answers": ["this one"]}) == run
    assert (await stored("t"))[-1] == "done" and await other.pending() == []


def test_one_agent_works_in_several_event_loops(folder: Path) -> None:
    agent = Agent(echo(), thread_id="t")
    for text in ("a", "b"):
        asyncio.run(agent.prompt(text))
        assert files(folder) == [FILE]
    with ThreadPoolExecutor(3) as threads:
        others = [Agent(echo(), thread_id=f"t{n}") for n in range(6)]
        assert len({*threads.map(lambda other: asyncio.run(other.prompt("c")), others)}) == 6
    assert asyncio.run(stored("t")) == ["a", "a!", "b", "b!"] and asyncio.run(stored("t5")) == ["c", "c!"]
    assert files(folder) == [FILE]


async def test_agents_of_one_loop_share_the_file(folder: Path) -> None:
    """A call that ends does not close the file for the calls that still use it."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await go_on.wait()
        return "waited"

    slow = asyncio.create_task(Agent(calling(("wait", {})), tools=[wait], thread_id="slow").prompt("a"))
    await begun.wait()
    await asyncio.gather(*(Agent(echo(), thread_id=f"t{n}").prompt("b") for n in range(20)))
    go_on.set()
    await slow
    assert (await stored("slow"))[-1] == "done" and await stored("t19") == ["b", "b!"]
    assert files(folder) == [FILE]


def test_a_loop_that_ends_during_a_prompt_closes_the_file(folder: Path) -> None:
    async def abandoned() -> None:
        begun = asyncio.Event()

        async def never() -> str:
            begun.set()
            await asyncio.Event().wait()
            return ""

        agent = Agent(calling(("never", {})), tools=[never], thread_id="t")
        prompt = asyncio.create_task(agent.prompt("a", run_id="r"))
        await begun.wait()
        assert not prompt.done()

    asyncio.run(abandoned())
    gc.collect()
    assert files(folder) == [FILE]
    assert asyncio.run(Agent(echo(), thread_id="t").resume("r")) == "r"


def _talk(thread_id: str, turns: int) -> None:
    async def talk() -> None:
        agent = Agent(echo(), thread_id=thread_id)
        for n in range(turns):
            await agent.prompt(f"{n}")

    asyncio.run(talk())


def test_processes_share_the_file(folder: Path) -> None:
    """Each call of a process opens and closes the file while the other processes read and write it."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_talk, args=(f"t{n}", 10)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [len(asyncio.run(stored(f"t{n}"))) for n in range(3)] == [20, 20, 20]
    assert files(folder) == [FILE]


async def test_a_file_that_cannot_be_used_is_refused_with_the_remedy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / FILE).mkdir()
    agent = Agent(echo(), thread_id="t")
    with pytest.raises(BackendUnavailableError, match=r"runyard\.db, which cannot be used: .*SQLiteCheckpointer\(path\)"):
        await agent.prompt("a", run_id="r")
    assert agent.state.active_run_id is None and not agent.state.is_streaming
    (folder / FILE).rmdir()
    assert await agent.prompt("a", run_id="r") == "r"
    (folder / FILE).write_text("no database, but longer than the header of one" * 100)
    with pytest.raises(DataCorruptedError, match="SQLiteCheckpointer"):
        await agent.prompt("b")
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BackendUnavailableError, match="the working directory cannot be used"):
        await Agent(echo(), thread_id="t").prompt("a")
    monkeypatch.chdir(folder)


async def test_a_place_that_cannot_be_opened_is_refused(folder: Path) -> None:
    (folder / FILE).mkdir()
    with pytest.raises(BackendUnavailableError, match="SQLiteCheckpointer"):
        await Agent(echo(), thread_id="t").prompt("a")


async def test_a_failed_prompt_closes_the_file(folder: Path) -> None:
    agent = Agent(answering(lambda prompt, results: RuntimeError("down")), thread_id="t")
    with pytest.raises(RuntimeError):
        await agent.prompt(Message.user("a"))
    assert files(folder) == [FILE]
