"""The hook of hatchling that builds the console before a wheel or an sdist. A failure is a warning: the console is optional."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import build


class ConsoleHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # make builds it, in the environment that is being made here
        try:
            build.build()
        except build.BuildError as error:
            self.app.display_warning(f"the console was not built: {error}")
