"""runyard: agent conversations as durable, distributed jobs.

This module is the public surface. Names are imported when they are first used, so that ``import runner`` costs next to nothing
in a program that only enqueues.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .extras import load as _load

if TYPE_CHECKING:
    from . import errors as errors
    from .agent import Agent as Agent
    from .agent import AgentState as AgentState
    from .agents.budgets import Budget as Budget
    from .agents.choice import default_model as default_model
    from .agents.context import RunContext as RunContext
    from .agents.driver import serve as serve
    from .agents.steps import CurrentStep as CurrentStep
    from .agents.steps import current_run as current_run
    from .agents.steps import current_step as current_step
    from .agents.steps import step as step
    from .app import App as App
    from .app import load_app as load_app
    from .client import Client as Client
    from .errors import RunyardError as RunyardError
    from .handle import RunHandle as RunHandle
    from .handle import RunResult as RunResult
    from .models import Branch as Branch
    from .models import ErrorInfo as ErrorInfo
    from .models import Event as Event
    from .models import FeedEntry as FeedEntry
    from .models import ForkManyResult as ForkManyResult
    from .models import ForkOnceResult as ForkOnceResult
    from .models import HitlRequest as HitlRequest
    from .models import ImagePart as ImagePart
    from .models import Message as Message
    from .models import RetryPolicy as RetryPolicy
    from .models import Run as Run
    from .models import TextPart as TextPart
    from .models import ThinkingPart as ThinkingPart
    from .models import Thread as Thread
    from .models import ToolCallPart as ToolCallPart
    from .models import ToolResultPart as ToolResultPart
    from .models import Usage as Usage
    from .models import new_id as new_id
    from .states import RunStatus as RunStatus
    from .sync import SyncClient as SyncClient

_HOMES = {
    "agent": ("Agent", "AgentState"),
    "agents.budgets": ("Budget",),
    "agents.choice": ("default_model",),
    "agents.context": ("RunContext",),
    "agents.driver": ("serve",),
    "agents.steps": ("CurrentStep", "current_run", "current_step", "step"),
    "app": ("App", "load_app"),
    "client": ("Client",),
    "errors": ("RunyardError",),
    "handle": ("RunHandle", "RunResult"),
    "models": (
        "Branch", "ErrorInfo", "Event", "FeedEntry", "ForkManyResult", "ForkOnceResult", "HitlRequest", "ImagePart", "Message",
        "RetryPolicy", "Run", "TextPart", "ThinkingPart", "Thread", "ToolCallPart", "ToolResultPart", "Usage", "new_id",
    ),
    "states": ("RunStatus",),
    "sync": ("SyncClient",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # made by __getattr__
    "Agent",
    "AgentState",
    "App",
    "Branch",
    "Budget",
    "Client",
    "CurrentStep",
    "ErrorInfo",
    "Event",
    "FeedEntry",
    "ForkManyResult",
    "ForkOnceResult",
    "HitlRequest",
    "ImagePart",
    "Message",
    "RetryPolicy",
    "Run",
    "RunContext",
    "RunHandle",
    "RunResult",
    "RunStatus",
    "RunyardError",
    "SyncClient",
    "TextPart",
    "ThinkingPart",
    "Thread",
    "ToolCallPart",
    "ToolResultPart",
    "Usage",
    "current_run",
    "current_step",
    "default_model",
    "errors",
    "load_app",
    "new_id",
    "serve",
    "step",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module(".errors", __name__)
    if (home := _HOME_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_load(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
