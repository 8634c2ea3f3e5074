"""The waits of one attempt of a run: the stored waits of earlier attempts, and the waits of this attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..domain.derived_ids import wait_id
from ..domain.waits import Wait, WaitKind


class Waits:
    """The waits of one attempt.

    ``known``: the stored waits of earlier attempts, by id. ``open``: the waits for which this attempt is suspended, by id.
    """

    def __init__(self, thread_key: int, run_id: str, known: Mapping[str, Wait]) -> None:
        self._thread_key = thread_key
        self._run_id = run_id
        self._known = known
        self.open: dict[str, Wait] = {}

    def id_of(self, kind: WaitKind, key: str) -> str:
        """Return the id of the wait ``key``."""
        return wait_id(self._thread_key, self._run_id, kind, key)

    def find(self, kind: WaitKind, key: str) -> Wait | None:
        """Return the wait ``key`` of an earlier attempt, or None."""
        return self._known.get(self.id_of(kind, key))

    def begin(self, kind: WaitKind, key: str, **fields: Any) -> None:
        """Begin the wait ``key``. If an earlier attempt began this wait, the wait continues unchanged."""
        wait = self.find(kind, key) or Wait(wait_id=self.id_of(kind, key), kind=kind, **fields)
        self.open[wait.wait_id] = wait
