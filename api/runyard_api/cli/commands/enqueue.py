"""The command ``enqueue``."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from runyard.errors import InvalidInputError, RunyardError
from runyard.models import JsonObject
from runyard.ports import commands
from runyard.ports.results import outage_of

from .. import deployment, exit_codes, options
from ..view import output

if TYPE_CHECKING:
    from runyard import Client, Prompt, RunHandle

MAX_LINE_BYTES: Final = 2**26
"""Maximum number of bytes of a line. A prompt with the largest allowed message has fewer bytes, even if every character of the
message is escaped."""
PART_BYTES: Final = 2**23
"""When the lines that were read have this number of bytes, they are sent together."""


def enqueue(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="File of JSON Lines, or - for standard input. Each line is a prompt with its thread_id."
        ),
    ],
    as_json: options.Json = False,
) -> int:
    """Send the prompts of a file in batches of 1,000. A line has the fields of `POST /v1/runs`. If each line has a run_id, you
    can repeat the command. If a line is refused, the other lines are still sent. If the store cannot be reached, the later
    lines are not sent."""
    with _opened(file) as lines:
        return deployment.wait(_enqueue(context, lines, as_json=as_json))


async def _enqueue(context: typer.Context, lines: BinaryIO, *, as_json: bool) -> int:
    accepted = known = refused = 0
    code: int = exit_codes.Exit.OK
    async with deployment.connect(context) as client:
        try:
            for part in _parts(lines):
                outcomes = await _outcomes(client, part)
                for number, outcome in outcomes:
                    if isinstance(outcome, RunyardError):
                        refused += 1
                        code = code or exit_codes.of_error(outcome)
                        if not as_json:
                            output.say(f"line {number}: {outcome.code}: {outcome.message}")
                    elif outcome.created:
                        accepted += 1
                    else:
                        known += 1
                    if as_json:
                        output.print_json_line(_line(number, outcome))
                if outage_of(one for _, one in outcomes) is not None:
                    output.say(f"no line after line {part[-1][0]} was sent; repeat the command")
                    break
        finally:
            if not as_json:
                output.print_line(f"accepted {accepted} runs; {known} existed before; {refused} lines were refused")
    return code


def _parts(lines: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the numbered lines of a file in parts of at most MAX_PROMPTS_PER_CALL lines and about PART_BYTES. Omit empty lines.
    If a line is longer than MAX_LINE_BYTES, keep only its beginning."""
    part: list[tuple[int, bytes]] = []
    size = number = 0
    while line := lines.readline(MAX_LINE_BYTES + 1):
        number += 1
        rest = line
        while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
            rest = lines.readline(MAX_LINE_BYTES + 1)
        if number == 1:
            line = line.removeprefix(BOM_UTF8)
        if line.strip():
            part.append((number, line))
            size += len(line)
        if len(part) == commands.MAX_PROMPTS_PER_CALL or size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


async def _outcomes(client: Client, part: list[tuple[int, bytes]]) -> list[tuple[int, RunHandle | RunyardError]]:
    """Enqueue the prompts of numbered lines and return one outcome per line."""
    read = [(number, _prompt(line)) for number, line in part]
    stored = iter(await client.enqueue_many(prompt for _, prompt in read if not isinstance(prompt, RunyardError)))
    return [(number, prompt if isinstance(prompt, RunyardError) else next(stored)) for number, prompt in read]


def _prompt(line: bytes) -> Prompt | RunyardError:
    from pydantic import ValidationError

    from runyard.domain.json_text import Shape, read
    from runyard.domain.validation import first_problem
    from runyard_api.http.batch_bodies import BatchedPrompt
    from runyard_api.http.reading import MAX_BODY_VALUES

    if len(line) > MAX_LINE_BYTES:
        return InvalidInputError(f"the line has more than {MAX_LINE_BYTES} bytes", most=MAX_LINE_BYTES)
    try:
        Shape(MAX_BODY_VALUES).feed_all(line)
        return BatchedPrompt.model_validate(read(line)).prompt()
    except ValidationError as error:
        name, problem, _ = first_problem(error)
        return InvalidInputError(f"{name or 'the line'}: {problem}", field=name)
    except ValueError as error:
        return InvalidInputError(f"the line cannot be read as JSON: {error}")


def _line(number: int, outcome: RunHandle | RunyardError) -> JsonObject:
    if isinstance(outcome, RunyardError):
        return {"line": number, "error": {"code": outcome.code, "message": outcome.message}}
    return {"line": number, "thread_id": outcome.thread_id, "run_id": outcome.run_id, "created": outcome.created}


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(file).open("rb") as opened:
            yield opened
    except OSError as error:
        raise InvalidInputError(f"cannot read {file!r}: {error.strerror}", field="file") from None
