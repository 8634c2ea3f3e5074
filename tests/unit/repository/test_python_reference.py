"""The pages of the Python reference show the references of docstrings so that a reader of the page finds the target."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "docs" / "reference"))

import python_pages  # noqa: E402

LIMITS = "[size limits](../../how-to/limits.md#fixed-limits)"


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        (":meth:`fork`", "`fork`"),
        (":meth:`Agent.fork`", "`fork`"),
        (":meth:`Client.fork`", "`Client.fork`"),
        (":meth:`~Client.fork`", "`Client.fork`"),
        (":meth:`runyard.Client.fork`", "`Client.fork`"),
        (":attr:`~runyard.models.Run.omitted`", "`Run.omitted`"),
        (":class:`~runyard.hitl.InMemoryChannel`", "`InMemoryChannel`"),
        (":func:`.engine.drive`", "`drive`"),
        (":data:`runyard.models.ROOT_ID`", "`ROOT_ID`"),
        (":class:`pydantic_ai.Agent`", "`pydantic_ai.Agent`"),
        (":mod:`runyard.errors`", "[`runyard.errors`](runyard.errors.md)"),
        (":mod:`runyard.domain.size_limits`", LIMITS),
        (":mod:`runyard.support.location`", "`runyard.support.location`"),
        (":mod:`.openai_items`", "`openai_items`"),
    ],
)
def test_a_reference_names_the_class_of_its_target(reference: str, shown: str) -> None:
    """On the page of ``Agent.fork``, a reference to ``Client.fork`` must not look like a reference to ``Agent.fork``."""
    assert python_pages.prose(f"As for {reference}, but faster.", "Agent") == f"As for {shown}, but faster."


def test_no_method_refers_to_itself() -> None:
    """Such a sentence is an error of the page, or of the docstring."""
    for name, text in python_pages.pages():
        for title, body in re.findall(r"^#### (\w+\.\w+)\n\n```py\n[^`]*```\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL):
            method = title.partition(".")[2]
            assert not re.search(rf"\b(as|like|as for|as in|see|errors of) `{method}`", body, re.IGNORECASE), f"{name}: {title}"
