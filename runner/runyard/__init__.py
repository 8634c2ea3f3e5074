"""runyard: agent conversations as durable, distributed jobs.

This module is the public API. Each name is imported at its first use. ``import runyard`` is therefore fast in a program that
only enqueues.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .support.optional_imports import load as _load

if TYPE_CHECKING:
    from . import errors as errors
    from .agents.active_prompt import AgentState as AgentState
    from .agents.agent import Agent as Agent
    from .agents.budgets import Budget as Budget
    from .agents.default_model import default_model as default_model
    from .agents.engine import serve as serve
    from .app import AgentOptions as AgentOptions
    from .app import App as App
    from .app import load_app as load_app
    from .client.client import Client as Client
    from .client.prompts import Prompt as Prompt
    from .client.run_handle import RunHandle as RunHandle
    from .client.run_handle import RunResult as RunResult
    from .client.sync import SyncClient as SyncClient
    from .domain.events import Event as Event
    from .domain.events import FeedEntry as FeedEntry
    from .domain.fan_outs import ForkManyResult as ForkManyResult
    from .domain.messages import AudioPart as AudioPart
    from .domain.messages import DocumentPart as DocumentPart
    from .domain.messages import FilePart as FilePart
    from .domain.messages import ImagePart as ImagePart
    from .domain.messages import Message as Message
    from .domain.messages import TextPart as TextPart
    from .domain.messages import ThinkingPart as ThinkingPart
    from .domain.messages import ToolCallPart as ToolCallPart
    from .domain.messages import ToolResultPart as ToolResultPart
    from .domain.messages import Usage as Usage
    from .domain.requests import HitlRequest as HitlRequest
    from .domain.runs import ErrorInfo as ErrorInfo
    from .domain.runs import ForkOnceResult as ForkOnceResult
    from .domain.runs import RetryPolicy as RetryPolicy
    from .domain.runs import Run as Run
    from .domain.states import RunStatus as RunStatus
    from .domain.threads import Branch as Branch
    from .domain.threads import Thread as Thread
    from .domain.validation import new_id as new_id
    from .errors import RunyardError as RunyardError
    from .execution.context import RunContext as RunContext
    from .execution.steps import CurrentStep as CurrentStep
    from .execution.steps import current_run as current_run
    from .execution.steps import current_step as current_step
    from .execution.steps import step as step

_HOMES = {
    "agents.active_prompt": ("AgentState",),
    "agents.agent": ("Agent",),
    "agents.budgets": ("Budget",),
    "agents.default_model": ("default_model",),
    "agents.engine": ("serve",),
    "app": ("AgentOptions", "App", "load_app"),
    "client.client": ("Client",),
    "client.prompts": ("Prompt",),
    "client.run_handle": ("RunHandle", "RunResult"),
    "client.sync": ("SyncClient",),
    "domain.states": ("RunStatus",),
    "errors": ("RunyardError",),
    "execution.context": ("RunContext",),
    "execution.steps": ("CurrentStep", "current_run", "current_step", "step"),
    "models": (
        "AudioPart", "Branch", "DocumentPart", "ErrorInfo", "Event", "FeedEntry", "FilePart", "ForkManyResult",
        "ForkOnceResult", "HitlRequest", "ImagePart", "Message", "RetryPolicy", "Run", "TextPart", "ThinkingPart", "Thread",
        "ToolCallPart", "ToolResultPart", "Usage", "new_id",
    ),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # __getattr__ imports these names
    "Agent",
    "AgentOptions",
    "AgentState",
    "App",
    "AudioPart",
    "Branch",
    "Budget",
    "Client",
    "CurrentStep",
    "DocumentPart",
    "ErrorInfo",
    "Event",
    "FeedEntry",
    "FilePart",
    "ForkManyResult",
    "ForkOnceResult",
    "HitlRequest",
    "ImagePart",
    "Message",
    "Prompt",
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
