"""The arq worker: arq's registry of functions and its job format around runyard's own main loop.

arq's loop polls, keeps running jobs in the queue, and hands a crashed worker's jobs on only after the longest timeout. So
:meth:`ArqWorker.main` runs :class:`runner.worker.Worker` instead: deliveries come from the scheduler's scripts, are won in
Postgres, and each run that was won is executed through the arq function of its kind. No arq result, retry or in-progress key
is ever written.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import arq.worker
import structlog
from arq.worker import Function

from backends.webhooks.sender import HttpSender
from runner import registry
from runner.app import App, name_of
from runner.collector import settle
from runner.containment import contain
from runner.exchange import Ended, Job, Retention
from runner.executor import Execution
from runner.intake import KINDS
from runner.isolation import Isolation, Order
from runner.liveness import Connect
from runner.patience import patiently
from runner.ports import Backend, Sender
from runner.probes import Watched, serving
from runner.webhooks.models import WebhookPolicy
from runner.worker import Worker

from .jobs import packb, unpackb

if TYPE_CHECKING:
    from arq.typing import StartupShutdown

    from runner.settings import Settings

CONNECT_BOUND: Final = 60.0
"""Seconds that a starting worker waits for its servers."""
LINGER: Final = 2.0
"""Seconds that connections, and what a worker's agents left behind, may take to end when nothing else is left to do."""
OUT_OF_THE_WAY: Final = 10 * 365 * 86400
"""arq's own job timeout, in seconds; a run's timeout is the executor's."""

MAIN_CONNECTION: Final = "runyard-worker"
LIVENESS_CONNECTION: Final = "runyard-liveness"
"""What the servers list the connections of a worker's main loop and of its liveness thread under."""

log = structlog.get_logger("runyard.worker")


async def execute(ctx: dict[str, Any], **ids: Any) -> Ended | None:
    """The arq function of every kind of job: carry out the execution that the claim put into ``ctx``."""
    execution: Execution = ctx["execution"]
    return await execution.run()


class ArqWorker(arq.worker.Worker):
    """Serves ``app`` from ``backend``; ``host`` is the process host that does the work.

    arq's hooks (``on_startup``, ``on_shutdown``, ``on_job_start``, ``on_job_end``, ``after_job_end``) are called as arq
    documents them. One that raises is reported in the log and changes nothing: how a run ends is decided in Postgres.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        queues: Sequence[str] | None = None,
        slots: int = 1000,
        grace: float = 20.0,
        watchdog: float = 30.0,
        connect: Connect | None = None,
        retention: Retention | None = None,
        address: str | None = None,
        isolation: Isolation | None = None,
        sender: Sender | None = None,
        webhooks: WebhookPolicy | None = None,
        **hooks: Any,
    ) -> None:
        super().__init__(
            functions=[arq.worker.func(execute, name=kind, keep_result=0, max_tries=OUT_OF_THE_WAY) for kind in KINDS],
            handle_signals=False,
            max_jobs=slots,
            job_timeout=OUT_OF_THE_WAY,
            keep_result=0,
            job_serializer=packb,
            job_deserializer=unpackb,
            **hooks,
        )
        self.host = Worker(
            app,
            backend,
            queues=queues,
            slots=slots,
            grace=grace,
            watchdog=watchdog,
            connect=connect,
            address=address,
            isolation=isolation,
            dispatch=self._dispatch,
            kinds=self.functions.keys(),
            retention=retention,
            sender=sender,
            webhooks=webhooks,
        )

    async def main(self) -> None:
        """Serve until ``host.stop()``."""
        if self.on_startup is not None:
            await self.on_startup(self.ctx)
        try:
            await self.host.run()
        finally:
            if self.on_shutdown is not None:
                await self.on_shutdown(self.ctx)

    async def close(self) -> None:
        """Nothing to close: connections are the backend's."""

    async def finish_failed_job(self, job_id: str, result_data: bytes | None) -> None:
        """Never fail a job: what cannot be read or is not known here is put back by the scheduler, for another version."""
        log.warning("job left to another worker", job_id=job_id)

    async def _dispatch(self, job: Job, execution: Execution) -> Ended | None:
        """Execute a claimed run as arq would: by the function registered for its kind, between the hooks."""
        key = f"{job.id}#{execution.attempt.fence}"
        ctx = {**self.ctx, "job_id": job.id, "job_try": execution.record.attempt, "execution": execution}
        function = self.functions[job.kind]
        assert isinstance(function, Function)
        task = asyncio.current_task()
        assert task is not None
        self.tasks[key] = task
        try:
            await _hook(self.on_job_start, ctx)
            ended: Ended | None = await function.coroutine(ctx, thread_key=job.thread_key, run_id=job.run_id)
            self.jobs_complete += 1
            await _hook(self.on_job_end, ctx)
        except Exception:
            self.jobs_failed += 1
            raise
        finally:
            del self.tasks[key]
        await _hook(self.after_job_end, ctx)
        return ended


async def _hook(hook: StartupShutdown | None, ctx: dict[str, Any]) -> None:
    if hook is not None:
        try:
            await hook(ctx)
        except Exception:
            log.exception("a hook failed", job_id=ctx["job_id"])


@asynccontextmanager
async def serve(app: App, backend: Backend, **options: Any) -> AsyncIterator[Worker]:
    """A worker in this process, for as long as the block lasts. ``options`` are :class:`ArqWorker`'s."""
    worker = ArqWorker(app, backend, **options)
    serving = asyncio.create_task(worker.async_run())
    started = asyncio.create_task(worker.host.started.wait())
    try:
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        yield worker.host
    finally:
        started.cancel()
        worker.host.stop()
        await serving


async def _run(app: App, settings: Settings, watched: Watched, soon: Callable[[int], None]) -> None:
    status = 1
    connect, second = connectors(settings)
    backend = await patiently(connect, bound=CONNECT_BOUND)
    sender = HttpSender(settings.webhook_allow_private)
    try:
        worker = ArqWorker(
            app,
            backend,
            queues=settings.queues,
            slots=settings.slots,
            grace=settings.grace,
            watchdog=settings.watchdog,
            connect=second,
            retention=settings.retention,
            address=watched.address,
            isolation=_isolation(app, settings),
            sender=sender,
            webhooks=settings.webhooks,
        )
        watched.worker = worker.host
        loop = asyncio.get_running_loop()
        contain(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.host.stop)
        settle()
        await worker.async_run()
        status = 0
    finally:
        soon(status)
        await sender.close()
        await backend.close()


def _isolation(app: App, settings: Settings) -> Isolation | None:
    """Where to execute what must run alone; None if a child could not import the app."""
    name = name_of(app)
    if name is None:
        log.warning("no module but the main one holds the app: runs that take down the worker cannot be executed apart")
        return None
    command = [sys.executable, "-m", f"{__package__}.isolated"]
    return Isolation(command, Order(name, settings, os.getpid()), watchdog=settings.watchdog)


def connectors(settings: Settings) -> tuple[Connect, Connect | None]:
    """How to make the worker's backend, and the small one of its liveness thread if it has servers to talk to."""
    url, tenant = settings.postgres_url, settings.tenant
    if not url.startswith("postgres"):
        return lambda: registry.connect(url, tenant=tenant), None

    async def main() -> Backend:
        return await registry.connect(
            url,
            tenant=tenant,
            redis=settings.redis_url,
            min_pool_size=settings.min_pool_size,
            max_pool_size=settings.max_pool_size,
            listen_url=settings.listen_url,
            name=MAIN_CONNECTION,
        )

    return main, liveness_connector(url, settings.redis_url)


def liveness_connector(url: str, redis_url: str) -> Connect:
    """Makes the second backend of a worker: few connections, and an answer within two seconds or none."""

    async def connect() -> Backend:
        return await registry.connect(
            url, redis=redis_url, min_pool_size=1, max_pool_size=2, command_timeout=2.0, name=LIVENESS_CONNECTION
        )

    return connect


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def guard_downloads() -> None:
    """Have this process refuse to fetch what messages name (:mod:`runner.agents.fetching`), whatever an agent imports later."""
    if find_spec("pydantic_ai") is None:
        return
    from runner.agents.fetching import guard_process

    if not guard_process():
        log.warning("downloads of pydantic-ai cannot be guarded; messages that name files by URL are refused")


def run_worker(app: App, settings: Settings) -> None:
    """Serve ``app`` until SIGTERM or SIGINT: then drain for the grace time; a second signal cuts it short. Blocks.

    SIGUSR1 writes the stacks of all threads to standard error, also while native code holds the interpreter.

    Raises BackendUnavailableError if the servers do not answer within a minute or the port of ``settings`` is taken,
    SchemaUninitialized, SchemaMismatch.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    guard_downloads()
    with _own_port(settings) as watched, _ending_soon() as soon, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(app, settings, watched, soon))


@contextmanager
def _ending_soon() -> Iterator[Callable[[int], None]]:
    """Gives a function after whose call the block ends in LINGER seconds, if need be with the process, whose exit status it
    takes: an event loop waits for every task and thread, and user code may hold on to its own for as long as it likes."""

    def leave(status: int) -> None:
        log.error("user code or a server does not end; the process ends without it")
        os._exit(status)

    with ExitStack() as stack:

        def soon(status: int) -> None:
            timer = threading.Timer(LINGER, leave, (status,))
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)

        yield soon


def _own_port(settings: Settings) -> AbstractContextManager[Watched]:
    if settings.metrics_port is None:
        return nullcontext(Watched())
    return serving(settings.metrics_port, settings.metrics_host, remote_stacks=settings.remote_stacks)
