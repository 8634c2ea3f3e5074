"""The places at which a graph or a subgraph waits for a human: interrupts and breakpoints (H5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from langgraph.pregel import Pregel
from langgraph.types import Interrupt, StateSnapshot

from ..domain.size_limits import JsonObject, JsonValue
from ..errors import HitlDeniedError, InvalidInputError
from .json_values import json_of
from .langgraph_answers import Answers

Graph: TypeAlias = Pregel[Any, Any, Any, Any]
Question: TypeAlias = tuple[JsonObject, JsonObject | None]
"""The payload and the answer schema of a request."""

DECISION_SCHEMA: Final[JsonObject] = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
            "required": ["approved"],
            "additionalProperties": False,
        },
    ]
}
"""Schema of the answers to a breakpoint: ``true``, ``false``, or an object that also has a reason."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The interrupts and breakpoints at which a graph waits. Their names are the same in every attempt."""

    interrupts: dict[str, Interrupt]
    breakpoints: dict[str, list[str]]

    def __bool__(self) -> bool:
        return bool(self.interrupts or self.breakpoints)

    def questions(self) -> dict[str, Question]:
        """Return the questions of interrupts and breakpoints that a human must answer, by key."""
        asked = {key: _question(waiting) for key, waiting in self.interrupts.items()}
        for key, nodes in self.breakpoints.items():
            asked[key] = ({"question": f"Continue with {', '.join(nodes)}?", "next": [*nodes]}, DECISION_SCHEMA)
        return asked

    def check(self, answers: Mapping[str, JsonValue]) -> None:
        """Raise HitlDeniedError if a human denied a breakpoint."""
        for key, nodes in self.breakpoints.items():
            answer = answers[key]
            decided = answer.get("approved") if isinstance(answer, dict) else answer
            if decided is not True:
                reason = answer.get("reason") if isinstance(answer, dict) else None
                words = f"a human denied that the graph continues with {', '.join(nodes)}"
                raise HitlDeniedError(f"{words}: {reason}" if reason else words, nodes=[*nodes])


def subgraphs(graph: Graph) -> dict[str, Graph]:
    """Return the subgraphs of a graph at every depth, by path. A path has the names of nodes.

    The graph itself has the path "".
    """
    found = {"": graph}
    found.update((path, each) for path, each in graph.get_subgraphs(recurse=True) if isinstance(each, Pregel))
    return found


def check_breakpoints(graph: Graph) -> bool:
    """Return whether a graph or a subgraph has ``interrupt_before``. Raise InvalidInputError for ``interrupt_after``."""
    graphs = subgraphs(graph)
    for path, each in graphs.items():
        if each.interrupt_after_nodes:
            where = f" of the subgraph {path}" if path else ""
            words = f"replace interrupt_after{where} with interrupt() or interrupt_before"
            raise InvalidInputError(f"{words}; after a crash, the graph can skip an interrupt_after", field="graph")
    return any(each.interrupt_before_nodes for each in graphs.values())


def waits(graph: Graph, state: StateSnapshot, answers: Answers, stopped: bool) -> Waits:
    """Return the interrupts and breakpoints at which a graph waits. ``state``: the state of the graph and of its subgraphs.

    ``answers``: the answers to interrupts. ``stopped``: whether this attempt has executed the graph up to ``state``. The name
    of a breakpoint contains the id of the checkpoint at which the graph stopped.
    """
    found, graphs = Waits({}, {}), subgraphs(graph)
    for path, each in _states("", state):
        for waiting in _interrupts(each):
            if (key := answers.key(waiting, stopped)) is not None:
                found.interrupts[key] = waiting
        if path in graphs and (stops := _stopped(graphs[path], each)):
            at = each.config["configurable"]
            found.breakpoints[f"breakpoint:{at.get('checkpoint_ns', '')}:{at['checkpoint_id']}"] = stops
    return found


def _states(path: str, state: StateSnapshot) -> Iterator[tuple[str, StateSnapshot]]:
    yield path, state
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.state.created_at is not None:
            yield from _states(f"{path}|{task.name}" if path else task.name, task.state)


def _stopped(graph: Graph, state: StateSnapshot) -> list[str]:
    stops = graph.interrupt_before_nodes
    return [name for name in state.next if stops == "*" or name in stops]


def _interrupts(state: StateSnapshot) -> list[Interrupt]:
    """Return the pending interrupts of the tasks of one graph. The interrupts of its subgraphs are not included."""
    return [
        waiting
        for task in state.tasks
        if task.result is None and not (isinstance(task.state, StateSnapshot) and task.state.tasks)
        for waiting in task.interrupts
    ]


def _question(waiting: Interrupt) -> Question:
    """Return the payload and the answer schema of a request for an interrupt.

    If the interrupt's value is a dict, the payload is this dict. The schema is the ``answer_schema`` in this dict. If the
    payload has no ``answer_schema``, the schema is the ``response_schema`` of the interrupt.
    """
    value, schema = json_of(waiting.value), getattr(waiting, "response_schema", None)
    if not isinstance(value, dict):
        value = {"question": value if isinstance(value, str) else str(value), "value": value}
    elif isinstance(value.get("answer_schema"), dict):
        schema = value["answer_schema"]
    return value, schema if isinstance(schema, dict) else None
