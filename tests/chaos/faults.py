"""The schedule of the faults, drawn from a seed before the start, so that a failure can be repeated."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

WORKERS: Final = 4

Kind = Literal[
    "kill", "pause", "replace", "flush", "empty", "crash", "disconnect", "wire", "redis_failover", "postgres_failover"
]
Wire = Literal["slow", "cut", "hold", "cut_after", "lose_replies"]

EVERY: Final[dict[Kind, float]] = {
    "kill": 7.0,
    "pause": 22.0,
    "replace": 33.0,
    "flush": 70.0,
    "empty": 90.0,
    "crash": 45.0,
    "disconnect": 25.0,
    "wire": 5.0,
    "redis_failover": 50.0,
    "postgres_failover": 55.0,
}
"""Seconds between two faults of a kind, on average.

kill: SIGKILL of a worker. pause: SIGSTOP past the death limit. replace: SIGTERM of every worker in turn. flush: FLUSHALL.
empty: Redis is killed and comes back empty. crash: Postgres is killed with all its processes and recovers. disconnect:
pg_terminate_backend of all connections. wire: a proxy makes a fault. redis_failover, postgres_failover: the replica becomes the
primary, and the old primary becomes its replica. For some time the address still leads to the old primary.
"""
LASTS: Final[dict[Kind, tuple[float, float]]] = {
    "kill": (0.0, 1.5),
    "pause": (4.5, 7.0),
    "empty": (0.0, 2.0),
    "crash": (0.0, 2.0),
    "wire": (0.5, 6.0),
    "redis_failover": (0.0, 2.0),
    "postgres_failover": (0.0, 2.0),
}
"""Shortest and longest duration of a fault in seconds. Other faults have no duration."""
WIRES: Final[tuple[Wire, ...]] = ("slow", "cut", "hold", "cut_after", "lose_replies")
CLIENTS: Final = "clients"


@dataclass(frozen=True, slots=True)
class Fault:
    """``at``: seconds after the start. ``worker``: 0 to WORKERS - 1. ``link``: whose connection, and to which server.
    ``seconds``: how long it lasts. ``amount``: bytes or replies, for the wires that count."""

    at: float
    kind: Kind
    worker: int = 0
    seconds: float = 0.0
    wire: Wire = "cut"
    link: tuple[str, str] = (CLIENTS, "postgres")
    amount: int = 0

    def __str__(self) -> str:
        where = f"{self.wire} {'/'.join(self.link)} {self.amount}" if self.kind == "wire" else f"worker {self.worker}"
        return f"{self.at:7.2f} s  {self.kind:<17} {where} for {self.seconds:.1f} s"


def schedule(seed: int, duration: float) -> list[Fault]:
    """Return the faults of one run of chaos, in order: one fault of each kind in each of its periods, at least one in all."""
    draw = random.Random(seed)
    faults = []
    for kind, every in EVERY.items():
        count = max(1, int(duration / every))
        for n in range(count):
            at = (n + draw.uniform(0.1, 0.9)) * duration / count
            faults.append(_fault(draw, kind, at))
    return sorted(faults, key=lambda fault: fault.at)


def _fault(draw: random.Random, kind: Kind, at: float) -> Fault:
    owners = [CLIENTS, *(str(n) for n in range(WORKERS))]
    wire = draw.choice(WIRES)
    return Fault(
        at,
        kind,
        worker=draw.randrange(WORKERS),
        seconds=draw.uniform(*LASTS.get(kind, (0.0, 0.0))),
        wire=wire,
        # Half of them are on the clients' connections, because a client must repeat a call with an unknown outcome.
        link=(draw.choices(owners, [WORKERS, *[1] * WORKERS])[0], draw.choice(("postgres", "redis"))),
        amount=draw.randrange(1, 4000) if wire == "cut_after" else draw.randrange(1, 6),
    )


def counts(faults: Iterable[Fault]) -> Counter[str]:
    """Return the number of faults of each kind."""
    return Counter(fault.kind for fault in faults)
