"""The certificates of authorities that HTTP clients trust."""

from __future__ import annotations

import os
from typing import Final

AUTHORITIES: Final = "SSL_CERT_FILE"
"""The tests set this variable to the file of one authority (tests/conftest.py)."""
CALLERS_AUTHORITIES: Final = "RUNYARD_TEST_SSL_CERT_FILE"
"""Has the value of the caller of the tests."""


def public() -> dict[str, str]:
    """Return the environment of a program that calls public servers, like pip and npm."""
    environment = {name: value for name, value in os.environ.items() if name != AUTHORITIES}
    callers = environment.get(CALLERS_AUTHORITIES)
    return {**environment, AUTHORITIES: callers} if callers else environment
