"""The environment variables that runyard reads. A command reports at its start each variable of runyard that has no effect: a
variable with an unknown name, and a variable in ``.env`` that runyard reads only from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from io import StringIO
from typing import Final

from dotenv.parser import parse_stream

from runyard.errors import InvalidInputError
from runyard.support import env_file
from runyard.support.env_file import PREFIX
from runyard.support.location import API_KEY, NAMESPACE
from runyard.support.settings import EnvFileSettings, Settings

from ..http.settings import ApiSettings

SETTINGS: Final[tuple[type[EnvFileSettings], ...]] = (Settings, ApiSettings)
"""The classes of settings."""

OTHER: Final[Mapping[str, tuple[str, str]]] = {
    "RUNYARD_APP": ("`runyard worker`, `runyard dev`", "the app to serve, `MODULE:APP`"),
    "RUNYARD_NAMESPACE": (
        "`App`, `Client.connect`, the command line",
        "the namespace of the program's agents; also read from `.env`",
    ),
    "RUNYARD_API_KEY": (
        "the command line, `Client.connect`",
        "the key of the HTTP API, for an `https` URL; it names the tenant; also read from `.env`",
    ),
    "RUNYARD_MODEL": (
        "`default_model()`, `runyard demo`",
        "the model, as `provider:model`; without it, `OPENAI_API_KEY` or `ANTHROPIC_API_KEY` selects one",
    ),
    "RUNYARD_FAILPOINTS": ("every process", "faults for tests of runyard itself; never set it in production"),
    "RUNYARD_TOKEN_DELAY": ("`runyard demo`", "the seconds between two words of the scripted agent"),
    "OTEL_…": ("`runyard worker`, `runyard api`", "the export of [traces](../how-to/traces.md)"),
}
"""A variable that no class of settings has → its readers, its meaning. These names are case-sensitive."""
IN_FILE: Final = frozenset({API_KEY, NAMESPACE})
"""The variables of OTHER that are also read from ``.env``."""

OF_TOOLS: Final = (f"{PREFIX}TEST_", f"{PREFIX}GROWTH_", f"{PREFIX}BENCH_")
"""The prefixes of the variables of runyard's own tests and benchmarks."""
SERVICE_HOST: Final = "_SERVICE_HOST"
"""The end of the name of a variable that Kubernetes sets for each service. The beginning is the name of the service."""
_SERVICE_END: Final = re.compile(r"_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_[A-Z]+(?:_(?:PROTO|PORT|ADDR))?)?)$")


def unknown() -> Iterator[str]:
    """Yield a sentence about each variable of the environment and of ``.env`` that begins with ``RUNYARD_`` and is not read.

    The sentence names the variable. If the variable is unknown, the sentence also names the known variable with the most
    similar name. The sentence does not contain the value. A variable whose name has other characters than letters, digits and
    underscores is left out, because such a name may contain a part of a value.
    """
    of_settings = {settings.variable(name) for settings in SETTINGS for name in settings.model_fields}
    known = of_settings | OTHER.keys()
    names = {*os.environ, *_in_file()}
    services = {name.removesuffix(SERVICE_HOST) for name in names if name.endswith(SERVICE_HOST)}
    for name in sorted(names):
        found = name.upper()
        if not (found.startswith(PREFIX) and re.fullmatch(r"\w+", name, re.ASCII)) or found in of_settings:
            continue
        if name in OTHER:
            if name not in os.environ and name not in IN_FILE:
                yield f"runyard does not read the variable {name} from .env; set it in the environment"
            continue
        if not name.startswith(OF_TOOLS) and _SERVICE_END.sub("", name) not in services:
            own = (each.removeprefix(PREFIX) for each in known)
            similar = get_close_matches(found.removeprefix(PREFIX), own, n=1)
            meant = f"; did you mean {PREFIX}{similar[0]}?" if similar else ""
            yield f"the variable {name} is unknown and has no effect{meant}"


def _in_file() -> set[str]:
    """Return the names of the variables in ``.env``. Lines without ``=`` are ignored.

    If a line of the file cannot be parsed, return no names. A later line could be part of a value. The readers of the values
    report a file that cannot be read.
    """
    with suppress(InvalidInputError):
        if (found := env_file.read()) is not None:
            lines = [*parse_stream(StringIO(found[0]))]
            if not any(line.error for line in lines):
                return {line.key for line in lines if line.key and line.value is not None}
    return set()
