"""The default model of examples, demos and new projects."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

VARIABLE: Final = "RUNYARD_MODEL"
DEFAULTS: Final = (
    ("OPENAI_API_KEY", "openai", "openai:gpt-5.4-mini"),
    ("ANTHROPIC_API_KEY", "anthropic", "anthropic:claude-haiku-5-5"),
)
"""The providers of default models.

An entry has the environment variable with the provider's API key, the provider's SDK, and the model.
"""


def default_model() -> str | None:
    """Return the model that the environment selects, as ``"provider:model"``. Return None if the environment selects no model.

    ``RUNYARD_MODEL`` names any model of pydantic-ai. If this variable is not set, OPENAI_API_KEY selects
    ``openai:gpt-5.4-mini`` and ANTHROPIC_API_KEY selects ``anthropic:claude-haiku-5-5``. An API key counts only if the
    provider's SDK is installed.
    """
    if named := os.environ.get(VARIABLE):
        return named
    installed = (model for key, sdk, model in DEFAULTS if os.environ.get(key) and find_spec(sdk) and find_spec("pydantic_ai"))
    return next(installed, None)
