"""The agent of the sweep, in a worker whose chains have no limit of time. A slow machine therefore ends no chain."""

from runyard.worker import slots
from tests.support.agents.sweep import app as app

setattr(slots, "CHAIN_SECONDS", 3600.0)  # noqa: B010 - the constant is final
