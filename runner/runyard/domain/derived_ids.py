"""Ids and digests that are derived from content. The same content always gives the same ids and digests.

Every version of the code must derive the same values. If a version derived other values, each run that this version continues
would ask its questions again and send other idempotency keys. ``validation.py`` makes the random ids, such as the run id of an
enqueue without ``run_id``.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any, Final

_JSON: Final = json.JSONEncoder(sort_keys=True, default=str)
_NAMESPACE: Final = uuid.UUID("5f1c8f0e-6d0b-5c39-9a53-0c5d5d1f7a10")


def derived_id(kind: str, *parts: str | int) -> str:
    """Return the UUID of ``parts``, as text. ``kind``: the kind of the object with this id.

    The same parts with another ``kind`` give another id.
    """
    return str(uuid.uuid5(_NAMESPACE, json.dumps([kind, *parts])))


def request_id(thread_key: int, run_id: str, key: str) -> str:
    """Return the id of the request ``key`` of a run.

    The id is the same in every attempt and different in every thread (H5, I6).
    """
    return derived_id("request", thread_key, run_id, key)


def wait_id(thread_key: int, run_id: str, kind: str, key: str) -> str:
    """Return the id of the wait ``key`` of a run. The id is the same in every attempt and different in every thread."""
    return derived_id("wait", thread_key, run_id, kind, key)


def step_idempotency_key(thread_key: int, run_id: str, step: str) -> str:
    """Return the idempotency key of the step with the key ``step``.

    The idempotency key is the same in every attempt of the run.
    """
    # Steps and requests have the same kind. The prefix makes their ids different.
    return derived_id("request", thread_key, run_id, f"step:{step}")


def candidate_id(src: str, run_id: str, n: int) -> str:
    """Return the id of the ``n``-th candidate of the fork job ``run_id``.

    The id is the id of the candidate's thread, or the run id of a probe.
    """
    return derived_id("candidate", src, run_id, n)


def forked_thread_id(src: str, run_id: str) -> str:
    """Return the default id of the new thread that the fork job ``run_id`` makes from the thread ``src``."""
    return derived_id("fork", src, run_id)


def first_prompt_id(new: str) -> str:
    """Return the run id of the first prompt of the fork ``new``, for a call without ``run_id``."""
    return derived_id("first prompt", new)


def digest(value: Any) -> str:
    """Return a short digest of a JSON value."""
    return hashlib.blake2b(_JSON.encode(value).encode(), digest_size=8).hexdigest()
