"""The ``runyard`` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated

import typer

from runyard.errors import AppImportError, RunyardError
from runyard.support.location import NAMESPACE

from . import deployment, exit_codes, variables
from .commands import (  # fmt: skip
    demo,
    dev,
    doctor,
    enqueue,
    feed,
    forks,
    import_,
    init,
    keys,
    limits,
    message_tree,
    migrate,
    prompt,
    queues,
    runs,
    serve_api,
    thread_files,
    threads,
    usage,
    webhooks,
    worker,
    workers,
)
from .exit_codes import Exit
from .meant_commands import Commands, UsageError
from .view import output

app = typer.Typer(
    cls=Commands,
    name="runyard",
    help="Agent conversations as durable, distributed jobs.",
    epilog="Exit codes: " + ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in Exit) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        output.print_line(f"runyard {version('runyard')}")
        raise typer.Exit


@contextmanager
def _in_namespace(namespace: str) -> Iterator[None]:
    """Set RUNYARD_NAMESPACE in the block, for the apps in this process and its child processes."""
    before = os.environ.get(NAMESPACE)
    os.environ[NAMESPACE] = namespace
    try:
        yield
    finally:
        if before is None:
            del os.environ[NAMESPACE]
        else:
            os.environ[NAMESPACE] = before


@app.callback()
def root(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="RUNYARD_POSTGRES_URL",
            help="URL of Postgres or of the HTTP API. Default: that of `runyard dev` in this folder, or of .env.",
        ),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(envvar="RUNYARD_REDIS_URL", help="URL of Redis. Default: the Redis of the `runyard dev` in this folder."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="RUNYARD_API_KEY", help="Key of the HTTP API, for an https URL. The key determines the tenant."),
    ] = None,
    tenant: Annotated[str, typer.Option(envvar="RUNYARD_TENANT", help="Tenant of the threads, runs and keys.")] = "",
    namespace: Annotated[
        str | None,
        typer.Option(envvar="RUNYARD_NAMESPACE", help="Namespace of the agents that commands name, and of the default agent."),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if namespace is not None:
        context.with_resource(_in_namespace(namespace))
    context.obj = deployment.Target(url, redis, tenant, namespace, api_key)
    if not (context.invoked_subcommand in ("worker", "api") and "--owned" in sys.argv):  # `dev`, which started it, has said it
        for sentence in variables.unknown():
            output.say(f"runyard: {sentence}")


_START, _TALK, _LOOK, _RUN = "Start", "Talk", "Look", "Operate"

app.command(rich_help_panel=_START)(init.init)
app.command(rich_help_panel=_START)(dev.dev)
app.command(rich_help_panel=_START)(demo.demo)
app.command(rich_help_panel=_TALK)(prompt.prompt)
app.command(rich_help_panel=_TALK)(enqueue.enqueue)
app.command(rich_help_panel=_TALK)(message_tree.regenerate)
app.command(rich_help_panel=_TALK)(prompt.respond)
app.command(rich_help_panel=_TALK)(prompt.signal)
app.command(rich_help_panel=_TALK)(prompt.abort)
app.command(rich_help_panel=_TALK)(prompt.cancel)
app.command(rich_help_panel=_TALK)(forks.fork)
app.command("fork-once", rich_help_panel=_TALK)(forks.fork_once)
app.command("fork-many", rich_help_panel=_TALK)(forks.fork_many)
for command in (message_tree.branches, message_tree.label, message_tree.store, message_tree.lineage, message_tree.diff):
    threads.app.command()(command)
threads.app.command()(thread_files.export)
threads.app.command("import")(thread_files.import_)
app.add_typer(threads.app, cls=Commands, name="threads", rich_help_panel=_LOOK)
app.add_typer(runs.app, cls=Commands, name="runs", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(runs.requests)
app.command(rich_help_panel=_LOOK)(feed.feed)
app.command(rich_help_panel=_LOOK)(usage.usage)
app.command(rich_help_panel=_RUN)(worker.worker)
app.command(rich_help_panel=_RUN)(serve_api.api)
app.add_typer(keys.app, cls=Commands, name="keys", rich_help_panel=_RUN)
app.add_typer(workers.app, cls=Commands, name="workers", rich_help_panel=_RUN)
app.add_typer(queues.app, cls=Commands, name="queues", rich_help_panel=_RUN)
app.command(rich_help_panel=_RUN)(doctor.doctor)
app.command(rich_help_panel=_RUN)(migrate.migrate)
app.add_typer(import_.app, cls=Commands, name="import", rich_help_panel=_RUN)
app.add_typer(limits.app, cls=Commands, name="limits", rich_help_panel=_RUN)
app.add_typer(webhooks.app, cls=Commands, name="webhooks", rich_help_panel=_RUN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Every failure is one line on standard error. If the app cannot be imported, its
    traceback comes first."""
    try:
        code = app(args=list(arguments) if arguments is not None else None, prog_name="runyard", standalone_mode=False)
    except UsageError as error:
        words = _words(error)  # without a command, typer has printed the help, and the message is empty
        return _say(words.rstrip(".?") + _help_of(error), Exit.USAGE) if words else Exit.USAGE
    except RunyardError as error:
        if isinstance(error, AppImportError):
            output.say_lines(str(error.details.get("traceback") or ""))
        return _say(error.message, exit_codes.of_error(error))
    except exit_codes.MissingError as error:
        return _say(str(error), Exit.NOT_FOUND)
    except TimeoutError as error:
        reason = f": {error}" if str(error) else ""
        return _say(f"the wait timed out; the run continues{reason}", Exit.TIMEOUT)
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except SystemExit as leaving:  # typer and rich exit in this way if the reader of a pipe has ended. This is not a failure.
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return Exit.OK
    except Exception as error:
        return _say(f"{type(error).__name__}: {error}", Exit.INTERNAL)
    return int(code or 0)


def _say(words: str, code: Exit) -> int:
    output.say(f"runyard: {' '.join(words.split())}")
    return int(code)


def _words(error: Exception) -> str:
    tell = getattr(error, "format_message", None)
    return str(tell() if tell else error)


def _help_of(error: BaseException) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "runyard")
    return f"; see `{command} --help`"
