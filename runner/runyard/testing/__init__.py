"""Test helpers for agents: a scripted model, a harness without servers, and a deployment inside the test's process.

::

    model = ScriptedModel([call("refund", order="7"), "Done."])

    async with Harness(Agent(model, tools=[refund])) as harness:
        run = await harness.prompt("t1", "Refund order 7, please")
        assert run.ok and run.text == "Done."
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..support.optional_imports import load as _load

if TYPE_CHECKING:
    from .crashes import Moment as Moment
    from .crashes import Write as Write
    from .crashes import crash_everywhere as crash_everywhere
    from .harness import Harness as Harness
    from .harness import HarnessRun as HarnessRun
    from .harness import StuckError as StuckError
    from .in_process import deployment as deployment
    from .model import ModelRequested as ModelRequested
    from .model import Reply as Reply
    from .model import ScriptedModel as ScriptedModel
    from .model import ScriptEndedError as ScriptEndedError
    from .model import call as call

_HOMES = {
    "crashes": ("Moment", "Write", "crash_everywhere"),
    "harness": ("Harness", "HarnessRun", "StuckError"),
    "in_process": ("deployment",),
    "model": ("ModelRequested", "Reply", "ScriptEndedError", "ScriptedModel", "call"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # __getattr__ imports each name on first use, because the harness and the models need different packages
    "Harness",
    "HarnessRun",
    "ModelRequested",
    "Moment",
    "Reply",
    "ScriptEndedError",
    "ScriptedModel",
    "StuckError",
    "Write",
    "call",
    "crash_everywhere",
    "deployment",
]


def __getattr__(name: str) -> Any:
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_load(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
