"""Clients of the HTTP API that need little CPU time, because they share a small machine with the API.

``python -m benchmarks.http_clients read|prompt HOST PORT KEY ORDER`` is one process with one event loop and a parser in C.
``ORDER`` is a JSON object with the arguments of :func:`read` or :func:`prompt`. The last line of the output is the result as
JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast
from urllib.parse import quote

import httptools
import uvloop

from benchmarks.board import stamp, stamped
from benchmarks.http_side import PAUSE

AT_ONCE = 64
"""Number of streams that are opened at the same time, and of streams that are read again at the end at the same time."""
AGAIN = (429, 503)
"""Statuses of the API after which the same request is sent again."""


class Connection(asyncio.Protocol):
    """A connection that sends one request after the other. ``on_body`` is called with each piece of an answer's body."""

    def __init__(self, on_body: Callable[[bytes], object]) -> None:
        self.on_body = on_body
        self.headers: dict[bytes, bytes] = {}
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, request: bytes) -> int:
        """Send a request and return the status of the answer once the whole answer has arrived.

        Raises ConnectionError if the connection ends before that.
        """
        if self._transport.is_closing():
            raise ConnectionResetError("the API closed the connection")
        self._parser = httptools.HttpResponseParser(self)
        self._answer = asyncio.get_running_loop().create_future()
        self.headers.clear()
        self._transport.write(request)
        return await self._answer

    def cut(self) -> None:
        """Abort the connection. Data in flight is lost."""
        self.on_body = len
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_message_complete(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the API closed the connection"))


@dataclass(frozen=True)
class Api:
    """The address of the API, and a key."""

    host: str
    port: int
    key: str

    async def connect(self, on_body: Callable[[bytes], object] = len) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(on_body), self.host, self.port)
        return connection

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
        """Return the bytes of a request with the API key."""
        every = {"Host": self.host, "Authorization": f"Bearer {self.key}", **headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in every.items())
        return f"{method} {quote(path)} HTTP/1.1\r\n{lines}\r\n".encode() + body


@dataclass
class Reader:
    """A reader of the stream of the run of ``thread``.

    ``ids``: the event ids that the reader has received, as (fence, number). ``text``: the received text, in pieces. ``tokens``:
    one (time when made, time of arrival) per token, in nanoseconds of the monotonic clock. ``gaps``: number of gap events.
    ``returns``: number of reconnections. ``ended``: whether the run has completed. ``begun``: set by the first event.
    """

    api: Api
    thread: str
    ids: list[tuple[int, ...]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    gaps: int = 0
    returns: int = 0
    ended: bool = False
    connection: Connection | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self) -> None:
        """Read to the end of the run, over as many connections as necessary."""
        while not self.ended:
            self.connection = await self.api.connect(self._body())
            last = {"Last-Event-ID": "{}-{}".format(*self.ids[-1])} if self.ids else {}
            with suppress(ConnectionError):
                status = await self.connection.ask(self.api.request("GET", f"/v1/threads/{self.thread}/runs/run/stream", last))
                if status != 200:
                    raise RuntimeError(f"a reader was answered {status}")
            self.connection.cut()
            self.returns += not self.ended

    def leave(self) -> None:
        """Cut the connection. :meth:`read` then reconnects."""
        if self.connection is not None:
            self.connection.cut()

    def _body(self) -> Callable[[bytes], None]:
        rest = b""

        def take(data: bytes) -> None:
            nonlocal rest
            now = time.monotonic_ns()
            *frames, rest = (rest + data).split(b"\n\n")
            for frame in frames:
                self._frame(frame, now)

        return take

    def _frame(self, frame: bytes, now: int) -> None:
        fields = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
        kind = fields.get(b"event")
        if kind == b"gap":
            self.gaps += 1
        elif kind is not None:
            self.ids.append(tuple(int(part) for part in fields[b"id"].split(b"-")))
            self.begun.set()
            if kind == b"message.delta":
                text = json.loads(fields[b"data"])["data"]["text"]
                self.text.append(text)
                self.tokens += [(int(token.partition(":")[2]), now) for token in text.split()]
            self.ended = kind == b"run.completed"


async def read(api: Api, *, prefix: str, count: int, tokens: int, quiet: float, cuts: int, start: int) -> dict[str, Any]:
    """Read the streams of ``count`` runs, and return the latencies of their tokens and the counts of the check.

    First open all streams and print ``open``. After a line of input, stamp the slot ``start``, read to the end, and print
    ``over``. After another line, read all streams once more from the beginning to check the received events.

    ``prefix``: prefix of the thread ids. ``tokens``: number of tokens of each run. ``quiet``: seconds from the stamp until the
    first reader is cut off. ``cuts``: how often each reader is cut off between then and the end of the runs. ``start``: number
    of a slot of the board.
    """
    chance, loop = random.Random(1), asyncio.get_running_loop()
    readers = [Reader(api, f"{prefix}-{n}") for n in range(count)]
    few = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as reading:

        async def open(reader: Reader) -> None:
            async with few:
                reading.create_task(reader.read())
                await reader.begun.wait()

        async with asyncio.TaskGroup() as opening:
            for reader in readers:
                opening.create_task(open(reader))
        await _told("open")
        stamp(start)
        for reader in readers:
            for _ in range(cuts):
                loop.call_later(chance.uniform(quiet, tokens * PAUSE), reader.leave)
    await _told("over")

    async def whole(reader: Reader) -> Reader:
        once_more = Reader(api, reader.thread)
        async with few:
            await once_more.read()
        return once_more

    judges = await asyncio.gather(*(whole(reader) for reader in readers))
    missed = repeated = garbled = 0
    for reader, judge in zip(readers, judges, strict=True):
        missed += len({*judge.ids} - {*reader.ids}) + reader.gaps + judge.gaps
        repeated += sum(after <= before for before, after in pairwise(reader.ids))
        numbers = [token.partition(":")[0] for token in "".join(judge.text).split()]
        garbled += "".join(reader.text) != "".join(judge.text) or numbers != [str(n) for n in range(tokens)]
    facts = {
        "returns_total": sum(reader.returns for reader in readers),
        "events_total": sum(len(judge.ids) for judge in judges),
        "missed_total": missed,
        "repeated_total": repeated,
        "garbled_total": garbled,
    }
    unrest = stamped(start) + quiet * 1e9
    ms: dict[bool, list[float]] = {False: [], True: []}
    for made, came in (token for reader in readers for token in reader.tokens):
        ms[made >= unrest].append((came - made) / 1e6)
    return {"ms": ms[False], "ms_returning": ms[True], "facts": facts}


async def _told(word: str) -> None:
    print(word, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


@dataclass
class Prompter:
    """A sender of prompts, each on a thread of its own.

    ``accepted``: the thread ids of the accepted prompts. ``answered``: status → number of answers; 0 is a broken connection.
    ``idle``: connections that no request uses.
    """

    api: Api
    accepted: list[str] = field(default_factory=list)
    answered: Counter[int] = field(default_factory=Counter)
    idle: deque[Connection] = field(default_factory=deque)

    async def prompt(self, thread: str, text: str) -> None:
        """Send a prompt until the API accepts or refuses it. Send it again after a broken connection and a status of AGAIN."""
        body = json.dumps({"message": text, "run_id": "run", "agent": "answers"}).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        request = self.api.request("POST", f"/v1/threads/{thread}/runs", headers, body)
        while True:
            connection = self.idle.pop() if self.idle else await self.api.connect()
            try:
                status = await connection.ask(request)
            except ConnectionError:
                status = 0
            else:
                self.idle.append(connection)
            self.answered[status] += 1
            if status in AGAIN:
                await asyncio.sleep(float(connection.headers[b"retry-after"]))
            elif status != 0:
                break
        if status in (200, 202):
            self.accepted.append(thread)


async def prompt(api: Api, *, prefix: str, count: int, text: str, rate: float | None, clients: int) -> dict[str, Any]:
    """Send ``count`` prompts, each on a thread of its own, and return the milliseconds of each.

    With a rate, send ``rate`` prompts per second without waiting for earlier ones; the time of a prompt begins when it is due.
    Without a rate, use ``clients`` clients. Each of them sends its next prompt when its last one was accepted.
    """
    prompter, ms, threads = Prompter(api), [], [f"{prefix}-{n}" for n in range(count)]
    begin = time.monotonic() + 0.1

    async def at(due: float, thread: str) -> None:
        await prompter.prompt(thread, text)
        ms.append(1000 * (time.monotonic() - due))

    async with asyncio.TaskGroup() as group:
        if rate is not None:
            for n, thread in enumerate(threads):
                due = begin + n / rate
                await asyncio.sleep(due - time.monotonic())
                group.create_task(at(due, thread))
        else:
            waiting = iter(threads)

            async def client() -> None:
                for thread in waiting:
                    await at(time.monotonic(), thread)

            for _ in range(clients):
                group.create_task(client())
    refused = sum(count for status, count in prompter.answered.items() if status not in (0, 200, 202, *AGAIN))
    facts = {
        "per_second": len(ms) / (time.monotonic() - begin),
        "again_total": sum(prompter.answered[status] for status in (0, *AGAIN)),
        "refused_total": refused,
    }
    return {"ms": ms, "facts": facts, "accepted": prompter.accepted}


if __name__ == "__main__":
    what, host, port, key, order = sys.argv[1:]
    chosen = {"read": read, "prompt": prompt}[what]
    print(json.dumps(uvloop.run(chosen(Api(host, int(port), key), **json.loads(order)))))
