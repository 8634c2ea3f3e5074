"""Run a worker in this process. Connect, serve until a signal, and exit in time, even if user code still runs."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import structlog

from runyard.app import App, name_of
from runyard.domain.agent_names import qualified
from runyard.domain.runs import DEFAULT_AGENT
from runyard.errors import BackendUnavailableError, InvalidInputError, LoginRefusedError
from runyard.ports.stores import Backend
from runyard.support import backend_urls, metrics
from runyard.support.failure_log import FailureLog
from runyard.support.garbage_collector import settle
from runyard.support.store_retries import patiently
from runyard.worker.health_server import Watched, serving
from runyard.worker.heartbeat import Connect
from runyard.worker.heartbeat_process import HeartbeatProcess
from runyard.worker.isolation import Isolation, Order
from runyard.worker.task_guard import contain
from runyard.worker.worker import Worker
from runyard_backends.redis.arq_intake import ArqIntake
from runyard_backends.redis.arq_worker import ArqWorker
from runyard_backends.redis.connecting import is_cluster
from runyard_backends.redis.connection import RedisServer
from runyard_backends.webhooks.sender import HttpSender

from .. import trace_export

if TYPE_CHECKING:
    from runyard.support.settings import Settings

CONNECT_SECONDS: Final = 60.0
"""Maximum seconds for which a starting worker waits for its servers."""
LINGER_SECONDS: Final = 2.0
"""Seconds after the end of the worker within which its connections, and the tasks and threads of agents, must end."""
HEARTBEAT_MIN_CONNECTIONS: Final = 1
HEARTBEAT_MAX_CONNECTIONS: Final = 2
"""Minimum and maximum number of connections of a worker's heartbeat thread to Postgres."""
HEARTBEAT_STATEMENT_SECONDS: Final = 2.0
"""Seconds after which a statement of the heartbeat thread counts as failed."""

MAIN_CONNECTION: Final = "runyard-worker"
HEARTBEAT_CONNECTION: Final = "runyard-heartbeat"
ARQ_CONNECTION: Final = "runyard-arq"
"""Names under which the servers list the connections of a worker: those of the main loop, the heartbeat thread and the queues
of arq."""
ARQ_MAX_CONNECTIONS: Final = 8
"""Maximum number of connections of a worker to the queues of arq."""

log = structlog.get_logger("runyard.worker")


@asynccontextmanager
async def serve(app: App, backend: Backend, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker in this process during the block. ``options``: the options of :class:`ArqWorker`."""
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
    producers = arq_server(settings)
    backend = await open_backend(connect)
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
            heartbeat_process=_heartbeat_process(settings),
            retention=settings.retention,
            address=watched.address,
            isolation=_isolation(app, settings),
            sender=sender,
            webhooks=settings.webhooks,
            loops=[arq_intake(backend, settings, producers, app.namespace).run] if producers else [],
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
        if producers is not None:
            await producers.close()
        await backend.close()


async def open_backend(connect: Connect) -> Backend:
    """Return the backend that ``connect`` makes. If the servers do not answer, log this and wait for up to CONNECT_SECONDS.

    Raises BackendUnavailableError after this time. Raises LoginRefusedError at once, because a wrong URL stays wrong.
    """
    failures = FailureLog(log, "server_unavailable")

    async def opened() -> Backend:
        backend = await connect()
        try:
            await backend.scheduler.ping()
        except BaseException:
            await backend.close()
            raise
        return backend

    def waits(error: BackendUnavailableError) -> None:
        if isinstance(error, LoginRefusedError):
            raise error
        failures.failed(error, waits_seconds=CONNECT_SECONDS)

    backend = await patiently(opened, bound=CONNECT_SECONDS, on_failure=waits)
    failures.worked()
    return backend


def arq_server(settings: Settings) -> RedisServer | None:
    """Return the connections to the server of the arq queues in ``settings``, or None without queues. Raises InvalidInputError
    for a cluster, because arq's client uses keys in several hash slots for one job of arq."""
    if not settings.arq_queues:
        return None
    url = settings.arq_redis_url or settings.redis_url
    if is_cluster(url):
        what = "arq's client does not work on a cluster of Redis; name the server of its queues in RUNYARD_ARQ_REDIS_URL"
        raise InvalidInputError(what, field="arq_redis_url")
    return RedisServer(url, name=ARQ_CONNECTION, max_connections=ARQ_MAX_CONNECTIONS)


def arq_intake(backend: Backend, settings: Settings, server: RedisServer, namespace: str) -> ArqIntake:
    """Return the intake for the arq queues in ``settings``. ``server``: the connections to these queues. ``namespace``: the
    namespace of the agents."""
    metrics.serve_arq()
    return ArqIntake(server, backend, settings.arq_tenants, keep_result=settings.arq_keep_result, namespace=namespace)


def _isolation(app: App, settings: Settings) -> Isolation | None:
    """Return the command and the :class:`Order` that start a child process for attempts. Return None if a child process cannot
    import the app."""
    name = name_of(app)
    if name is None:
        log.warning(
            "isolation_disabled",
            app_version=app.version,
            reason="the app is in the main module, which a child process cannot import",
            effect="a run that crashed its worker twice is executed in the worker's own process",
        )
        return None
    command = [sys.executable, "-P", "-m", f"{__package__}.isolated"]
    return Isolation(command, Order(name, settings, os.getpid()), watchdog=settings.watchdog)


def _heartbeat_process(settings: Settings) -> HeartbeatProcess | None:
    """Return the heartbeat process of a worker. Return None without Postgres, Linux or the setting ``heartbeat_process``."""
    if not (settings.heartbeat_process and settings.postgres_url.startswith("postgres") and sys.platform == "linux"):
        return None
    return HeartbeatProcess([sys.executable, "-P", "-m", f"{__package__}.heartbeat_sender"], settings.postgres_url)


def connectors(settings: Settings) -> tuple[Connect, Connect | None]:
    """Return two functions that connect to the store and return a backend. The first is for the worker's main loop, the second
    for its heartbeat thread. For a store without servers, the second is None."""
    url, tenant = settings.postgres_url, settings.tenant
    if not url.startswith("postgres"):
        return lambda: backend_urls.connect(url, tenant=tenant), None

    async def main() -> Backend:
        return await backend_urls.connect(
            url,
            tenant=tenant,
            redis=settings.redis_url,
            min_pool_size=settings.min_pool_size,
            max_pool_size=settings.max_pool_size,
            listen_url=settings.listen_url,
            history_cache_bytes=settings.history_cache_bytes,
            stream_limits=settings.stream_limits,
            name=MAIN_CONNECTION,
        )

    return main, heartbeat_connector(url, settings.redis_url)


def heartbeat_connector(url: str, redis_url: str) -> Connect:
    """Return a function that connects a heartbeat thread to Postgres (``url``) and Redis (``redis_url``), and returns the
    backend."""

    async def connect() -> Backend:
        return await backend_urls.connect(
            url,
            redis=redis_url,
            min_pool_size=HEARTBEAT_MIN_CONNECTIONS,
            max_pool_size=HEARTBEAT_MAX_CONNECTIONS,
            command_timeout=HEARTBEAT_STATEMENT_SECONDS,
            name=HEARTBEAT_CONNECTION,
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
    """Make this process refuse to download files that messages name by URL (:mod:`runyard.agents.downloads`).

    The refusal also holds for agents that are imported later.
    """
    if find_spec("pydantic_ai") is None:
        return
    from runyard.agents.downloads import guard_process

    if not guard_process():
        log.warning(
            "download_guard_not_installed",
            reason="this version of pydantic-ai lacks the functions that the guard wraps",
            effect="messages that name files by URL are refused",
        )


def warn_about_agents(app: App) -> None:
    """If ``app`` has no agents, log ``app_without_agents``. No prompt gets an answer from such an app.

    If only the order of registration determines the default agent of ``app``, log ``default_agent_by_order``. Another order of
    imports would give another agent to the new threads whose prompts name no agent."""
    if app.default is None:
        log.warning(
            "app_without_agents", effect="no prompt gets an answer", do="register an agent: App({'assistant': assistant})"
        )
    elif len(app.agents) > 1 and app.default.name != qualified(app.namespace, DEFAULT_AGENT):
        log.warning(
            "default_agent_by_order",
            agent=app.default.name,
            effect="prompts that name no agent get the agent that is registered first",
            do=f"register one agent under the name {DEFAULT_AGENT!r}, or name an agent in each prompt",
        )


def run_worker(app: App, settings: Settings) -> None:
    """Serve ``app`` until SIGTERM or SIGINT, then drain for the grace time. A second signal ends the drain at once. The call
    blocks.

    SIGUSR1 writes the stacks of all threads to standard error, even while native code holds the interpreter.

    Raises BackendUnavailableError if the servers do not answer within a minute, or if the port of ``settings`` is taken. Raises
    LoginRefusedError if a server refuses the user, the password or the database of its URL. Raises InvalidInputError if the
    exporter of traces that the environment names is not installed. Raises SchemaUninitialized, SchemaMismatch.
    """
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warn_about_agents(app)
    metrics.own_registry()
    guard_downloads()
    trace_export.set_up(trace_export.WORKER, content=settings.trace_content)
    with _own_port(settings) as watched, _ending_soon() as soon, asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(app, settings, watched, soon))


@contextmanager
def _ending_soon() -> Iterator[Callable[[int], None]]:
    """Yield a function that takes an exit status. If the block has not ended LINGER_SECONDS after a call of this function, the
    process exits with this status.

    When an event loop closes, it waits for every task and thread. Tasks and threads of user code may never end.
    """

    def leave(status: int) -> None:
        reason = "user code or a connection did not end"
        log.error("worker_exit_forced", reason=reason, waited_seconds=LINGER_SECONDS, exit_status=status)
        os._exit(status)

    with ExitStack() as stack:

        def soon(status: int) -> None:
            timer = threading.Timer(LINGER_SECONDS, leave, (status,))
            timer.daemon = True
            timer.start()
            stack.callback(timer.cancel)

        yield soon


def _own_port(settings: Settings) -> AbstractContextManager[Watched]:
    if settings.metrics_port is None:
        return nullcontext(Watched())
    return serving(settings.metrics_port, settings.metrics_host, remote_stacks=settings.remote_stacks)
