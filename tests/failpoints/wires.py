"""Connections that are cut between a request and its reply: the server has done what it was asked, and nobody is told."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runyard_backends.postgres.database import statements
from runyard_backends.redis.scripts import script
from tests.support.fault_proxy import FaultProxy, Link

SCRIPTS: Final = {
    "scheduler.submit": "submit",
    "scheduler.claim": "claim",
    "scheduler.renew": "renew",
    "scheduler.release": "release",
    "scheduler.missing_jobs": "missing_jobs",
    "events.append_many": "append",
    "events.trim": "total_limit",
}
"""The script that carries out a verb of Redis."""

_PARSE: Final = re.compile(rb"P.{4}(\w+)\0([^\0]+)\0", re.DOTALL)


@dataclass
class Thief(FaultProxy):
    """Forwards, and cuts the connection when the server begins to answer the first request for each of ``wanted``.

    ``wanted``: verb → the bytes by which its request is known: a script's digest for Redis, a statement's text for Postgres,
    which is sent once per connection and then goes by a name. ``stolen`` is told of each verb whose reply was taken.
    """

    wanted: Mapping[str, bytes] = field(default_factory=dict)
    stolen: Callable[[str], None] = print
    _left: dict[str, bytes] = field(default_factory=dict)
    _names: defaultdict[Link, dict[bytes, str]] = field(default_factory=lambda: defaultdict(dict))

    def __post_init__(self) -> None:
        self._left = dict(self.wanted)

    def _damaged(self, link: Link, chunk: bytes, *, towards_server: bool) -> bytes:
        if towards_server and (verb := self._asked(link, chunk)) is not None:
            del self._left[verb]
            self.lose_replies()
            self.stolen(verb)
        return super()._damaged(link, chunk, towards_server=towards_server)

    def _asked(self, link: Link, chunk: bytes) -> str | None:
        """The wanted verb that ``chunk`` asks the server for."""
        for name, text in _PARSE.findall(chunk):
            self._names[link].update((name, verb) for verb, known in self.wanted.items() if known == text)
        for verb, known in self._left.items():
            names = [name for name, named in self._names[link].items() if named == verb]
            if len(known) == 40 and known in chunk:
                return verb
            if any(re.search(rb"B.{4}[^\0]*\0" + name + rb"\0", chunk, re.DOTALL) for name in names):
                return verb
        return None


OTHER_NAMES: Final = {"runs.complete": "complete_and_claim"}
"""The statements of a worker that do not have the name of their verb."""


def of_postgres(verbs: Sequence[str]) -> dict[str, bytes]:
    """Those of ``verbs`` that are one statement, with its text. Most statements have the name of their verb."""
    texts = statements()
    found = {verb: verb.partition(".")[2] for verb in verbs if verb.partition(".")[0] in ("runs", "threads", "workers")}
    found |= {verb: name for verb, name in OTHER_NAMES.items() if verb in found}
    return {verb: texts[name].encode() for verb, name in found.items() if name in texts}


def of_redis(verbs: Sequence[str]) -> dict[str, bytes]:
    """Those of ``verbs`` that are a script, with its digest."""
    return {verb: script(SCRIPTS[verb]).sha.encode() for verb in verbs if verb in SCRIPTS}
