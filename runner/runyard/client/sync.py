"""SyncClient: the client for code without an event loop, such as Django views, scripts and shells.

A background thread runs an event loop with a :class:`~runyard.client.client.Client`. Each method executes the Client's method
with the same name and arguments in the loop, and waits for its end. Several threads may share a SyncClient.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from ..domain.events import Event, FeedEntry, ThreadEvent
from ..domain.messages import Message
from ..errors import RunyardError
from ..formats.conversion import Format
from ..formats.pages import FormattedPage
from ..ports.results import Page
from .client import Client, ConnectOptions
from .host_connections import opened
from .prompts import Prompt
from .run_handle import RunHandle
from .threads import PathPage

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """An event loop in a daemon thread. Other threads run coroutines in this loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.closing: set[asyncio.Task[None]] = set()
        self.thread = threading.Thread(target=self.loop.run_forever, name="runyard-client", daemon=True)
        self.thread.start()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Execute ``coroutine`` in the loop and return its result. If the caller is interrupted, cancel the coroutine.

        Raises RuntimeError if the loop does not run.
        """
        if not self.thread.is_alive():
            coroutine.close()
            raise RuntimeError("this client is closed, or was made before a fork of the process; make a client in each process")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Yield the items one by one. The end of the iteration closes the generator."""
        try:
            while True:
                try:
                    item = self.wait(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if threading.current_thread() is self.thread:  # the garbage collector made this call; waiting would block the loop
                self.closing.add(closing := self.loop.create_task(_close(items)))
                closing.add_done_callback(self.closing.discard)
            elif self.loop.is_running():
                self.wait(items.aclose())

    def close(self) -> None:
        if not self.thread.is_alive():
            return
        with suppress(asyncio.CancelledError):
            self.wait(self.loop.shutdown_asyncgens())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()


async def _next(items: AsyncGenerator[T]) -> T:
    return await anext(items)


def _client_call(method: Callable[Concatenate[Client, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[SyncClient, P], T]:
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.portal.wait(method(self.client, *args, **kwargs))

    return _named_after(method, call)


def _handle_call(
    method: Callable[Concatenate[RunHandle, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[SyncRunHandle, P], T]:
    def call(self: SyncRunHandle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.portal.wait(method(self.handle, *args, **kwargs))

    return _named_after(method, call)


def _enqueueing(
    method: Callable[Concatenate[Client, P], Coroutine[Any, Any, RunHandle]],
) -> Callable[Concatenate[SyncClient, P], SyncRunHandle]:
    def call(self: SyncClient, /, *args: P.args, **kwargs: P.kwargs) -> SyncRunHandle:
        if "connection" in kwargs:
            kwargs["connection"] = opened(kwargs["connection"])  # Django's connection belongs to this thread
        return SyncRunHandle(self.portal, self.portal.wait(method(self.client, *args, **kwargs)))

    return _named_after(method, call)


def _named_after(method: Callable[..., Any], call: Callable[P, T]) -> Callable[P, T]:
    call.__name__, call.__doc__ = method.__name__, method.__doc__
    return call


class SyncRunHandle:
    """A :class:`~runyard.client.run_handle.RunHandle` with calls that block."""

    def __init__(self, portal: Portal, handle: RunHandle) -> None:
        self.portal, self.handle = portal, handle
        self.thread_id, self.run_id, self.created = handle.thread_id, handle.run_id, handle.created

    run = _handle_call(RunHandle.run)
    status = _handle_call(RunHandle.status)
    result = _handle_call(RunHandle.result)
    cancel = _handle_call(RunHandle.cancel)
    explain = _handle_call(RunHandle.explain)
    progress = _handle_call(RunHandle.progress)
    candidates = _handle_call(RunHandle.candidates)

    @property
    def id(self) -> str:
        """The same as ``run_id``."""
        return self.run_id

    def stream(self, last_event_id: str | None = None) -> Iterator[Event]:
        """Yield the events after ``last_event_id``, live, until the run ends or is suspended."""
        return self.portal.iterate(self.handle.stream(last_event_id))


class SyncClient:
    """A blocking client: ``with Client.sync(url) as client:``. The client connects at once.

    See :meth:`Client.connect` for errors.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        tenant: str = "",
        namespace: str | None = None,
        app_version: str | None = None,
        **options: Unpack[ConnectOptions],
    ) -> None:
        self.portal = Portal()
        try:
            self.client: Client = self.portal.wait(_connect(url, tenant, namespace, app_version, options))
        except BaseException:
            self.portal.close()
            raise

    def close(self) -> None:
        """Close all connections of the client and end its background thread. Runs continue."""
        if self.portal.thread.is_alive():
            self.portal.wait(self.client.close())
            self.portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def enqueue_many(self, prompts: Iterable[Prompt]) -> list[SyncRunHandle | RunyardError]:
        """Accept many prompts, and return one outcome per prompt, in order. See :meth:`Client.enqueue_many`."""
        found = self.portal.wait(self.client.enqueue_many(prompts))
        return [one if isinstance(one, RunyardError) else SyncRunHandle(self.portal, one) for one in found]

    enqueue = _enqueueing(Client.enqueue)
    regenerate = _enqueueing(Client.regenerate)
    enqueue_fork = _enqueueing(Client.enqueue_fork)
    enqueue_fork_many = _enqueueing(Client.enqueue_fork_many)
    respond = _client_call(Client.respond)
    signal = _client_call(Client.signal)
    cancel = _client_call(Client.cancel)
    abort_pending = _client_call(Client.abort_pending)
    redrive = _client_call(Client.redrive)
    delete_run = _client_call(Client.delete_run)
    fork = _client_call(Client.fork)
    fork_many = _client_call(Client.fork_many)
    fork_once = _client_call(Client.fork_once)
    fan_out_progress = _client_call(Client.fan_out_progress)
    candidates = _client_call(Client.candidates)
    run = _client_call(Client.run)
    thread_cursor = _client_call(Client.thread_cursor)
    runs = _client_call(Client.runs)
    explain = _client_call(Client.explain)
    attempts = _client_call(Client.attempts)
    timeline = _client_call(Client.timeline)
    find_run = _client_call(Client.find_run)
    request = _client_call(Client.request)
    requests = _client_call(Client.requests)
    thread = _client_call(Client.thread)
    threads = _client_call(Client.threads)
    create_thread = _client_call(Client.create_thread)
    lineage = _client_call(Client.lineage)
    child_runs = _client_call(Client.child_runs)
    diff = _client_call(Client.diff)
    update_thread = _client_call(Client.update_thread)
    message = _client_call(Client.message)
    branches = _client_call(Client.branches)
    set_label = _client_call(Client.set_label)
    remove_label = _client_call(Client.remove_label)
    store_message = _client_call(Client.store_message)
    delete_thread = _client_call(Client.delete_thread)
    erase_thread = _client_call(Client.erase_thread)
    feed = _client_call(Client.feed)
    usage = _client_call(Client.usage)
    workers = _client_call(Client.workers)
    worker = _client_call(Client.worker)
    drain_worker = _client_call(Client.drain_worker)
    queues = _client_call(Client.queues)
    pause_queue = _client_call(Client.pause_queue)
    resume_queue = _client_call(Client.resume_queue)
    limits = _client_call(Client.limits)
    set_limit = _client_call(Client.set_limit)
    clear_limit = _client_call(Client.clear_limit)
    create_key = _client_call(Client.create_key)
    keys = _client_call(Client.keys)
    revoke_key = _client_call(Client.revoke_key)
    subscribe_webhook = _client_call(Client.subscribe_webhook)
    webhook = _client_call(Client.webhook)
    webhooks = _client_call(Client.webhooks)
    remove_webhook = _client_call(Client.remove_webhook)
    webhook_deliveries = _client_call(Client.webhook_deliveries)
    redeliver_webhook = _client_call(Client.redeliver_webhook)
    webhook_secret = _client_call(Client.webhook_secret)
    rotate_webhook_secret = _client_call(Client.rotate_webhook_secret)

    @overload
    def messages(
        self, thread_id: str, leaf_id: str | None = None, *, format: None = None, **page: Unpack[PathPage]
    ) -> Page[Message]: ...

    @overload
    def messages(
        self, thread_id: str, leaf_id: str | None = None, *, format: Format, **page: Unpack[PathPage]
    ) -> FormattedPage: ...

    def messages(
        self, thread_id: str, leaf_id: str | None = None, *, format: Format | None = None, **page: Unpack[PathPage]
    ) -> Page[Message] | FormattedPage:
        """Return a path of the message tree, or a page of it. See :meth:`Client.messages`."""
        read = partial(self.client.messages, thread_id, leaf_id, **page)
        return self.portal.wait(read() if format is None else read(format=format))

    def handle(self, thread_id: str, run_id: str) -> SyncRunHandle:
        """Return a handle of a run, for example of a run from another process. This method does not call the deployment."""
        return SyncRunHandle(self.portal, self.client.handle(thread_id, run_id))

    def stream(self, thread_id: str, run_id: str, last_event_id: str | None = None) -> Iterator[Event]:
        """Yield a run's events after ``last_event_id``, live, until the run ends or is suspended."""
        return self.portal.iterate(self.client.stream(thread_id, run_id, last_event_id))

    def stream_thread(self, thread_id: str, after: str | None = None) -> Iterator[ThreadEvent]:
        """Yield the events of all runs of a thread, live, until the thread is deleted."""
        return self.portal.iterate(self.client.stream_thread(thread_id, after))

    def follow_feed(self, cursor: str | None = None) -> Iterator[FeedEntry]:
        """Yield the feed's entries after ``cursor``, then each new entry. The iteration does not end."""
        return self.portal.iterate(self.client.follow_feed(cursor))


async def _connect(
    url: str | None, tenant: str, namespace: str | None, app_version: str | None, options: ConnectOptions
) -> Client:
    return await Client.connect(url, tenant=tenant, namespace=namespace, app_version=app_version, **options)
