"""Which fault strikes when: drawn from a seed before anything starts, so that a failure can be repeated."""

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
pg_terminate_backend of all connections. wire: a proxy misbehaves. redis_failover, postgres_failover: the replica becomes the
primary, and the old primary lives on as its replica; for a while the address leads to the old one.
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
"""Seconds that a fault lasts, from and to, where it is not over at once."""
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
    """The faults of one run of chaos, in order. Of each kind one falls into each of its periods, and at least one in all."""
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
        # Half of them on the clients' connections, where an unknown outcome has to be repeated.
        link=(draw.choices(owners, [WORKERS, *[1] * WORKERS])[0], draw.choice(("postgres", "redis"))),
        amount=draw.randrange(1, 4000) if wire == "cut_after" else draw.randrange(1, 6),
    )


def counts(faults: Iterable[Fault]) -> Counter[str]:
    """How often each kind struck."""
    return Counter(fault.kind for fault in faults)
