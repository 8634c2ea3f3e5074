"""The sources of the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.conftest import SOURCES
from tests.support.node import NODE, said

pytestmark = pytest.mark.timeout(240)


async def test_the_sources_have_no_type_errors() -> None:
    """The bundler does not check types."""
    await said(NODE, Path("node_modules/typescript/bin/tsc"), "--project", ".", cwd=SOURCES)
