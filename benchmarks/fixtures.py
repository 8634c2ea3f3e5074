"""The conversation with which every store is filled. Prompts are short, and answers have one paragraph."""

from __future__ import annotations

PROMPT = "Which of the three proposals fits the budget, and what would we lose by choosing it?"
ANSWER = (
    "The second proposal fits. It keeps the rollout in two regions and moves the third to spring, "
    "so the fixed cost stays under the limit. What you would lose is the early feedback from the "
    "southern offices, and about four weeks on the reporting work that depends on it. "
)


def prompt(number: int) -> str:
    """Return the text of user message ``number``."""
    return f"{number}: {PROMPT}"


def answer(number: int) -> str:
    """Return the text of assistant message ``number``, about 280 characters."""
    return f"{number}: {ANSWER}"


def run_id(number: int) -> str:
    """Return the id of run ``number`` of a thread."""
    return f"run-{number}"
