"""A program of the user beside the workers of ``dev``, for example a web backend or a script with prompts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runyard.errors import InvalidInputError

from .processes import OwnedProcess


@contextmanager
def user_program(command: Sequence[str], postgres_url: str, redis_url: str) -> Iterator[OwnedProcess | None]:
    """Run ``command`` during the block, with the servers' URLs in its environment. Yield None if there is no command.

    The program shares the input, the output and the Ctrl-C of the terminal. Raises InvalidInputError if it cannot be started.
    """
    if not command:
        yield None
        return
    environment = {**os.environ, "RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
    try:
        program = OwnedProcess(command, environment, owned=False)
    except OSError as error:
        raise InvalidInputError(f"cannot start {command[0]!r}: {error.strerror}", field="command") from None
    with program:
        yield program
