"""A program of the user's own beside the workers of ``dev``: a web backend, or a script that prompts and is done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from runner.errors import InvalidInputError

PATIENCE: Final = 10.0
"""Seconds that the program has to end before it is killed."""


@contextmanager
def beside(command: Sequence[str], postgres_url: str, redis_url: str) -> Iterator[subprocess.Popen[bytes] | None]:
    """``command`` while the block lasts, with the servers in its environment; None if there is none.

    Raises InvalidInputError if it cannot be started.
    """
    if not command:
        yield None
        return
    environment = {**os.environ, "RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
    try:
        program = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise InvalidInputError(f"cannot start {command[0]!r}: {error.strerror}", field="command") from None
    try:
        yield program
    finally:
        _end(program)


def _end(program: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        program.terminate()
    try:
        program.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()
