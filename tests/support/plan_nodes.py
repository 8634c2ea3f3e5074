"""The plans that a session makes, those of statements in stored functions included.

A server without extensions shows the plans of nested statements only by ``debug_print_plan``, which sends each new plan to the
client as a dump of its nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import asyncpg

_TOKEN: Final = re.compile(r'[{}()\[\]]|(?:\\.|"(?:\\.|[^"\\])*"|[^\s{}()\[\]\\])+')
_SCANS: Final = {"SEQSCAN", "SAMPLESCAN", "INDEXSCAN", "INDEXONLYSCAN", "BITMAPHEAPSCAN", "TIDSCAN", "TIDRANGESCAN"}
_CONDITIONS: Final = ("indexqual", "tidquals")

Node = dict[str, Any]


@dataclass(frozen=True, order=True, slots=True)
class Scan:
    """A scan of a table. ``index``: its index, or an empty text. ``conditions``: the number of conditions on the index."""

    table: str
    node: str
    index: str
    conditions: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. ``place``: the name of the statement, or of the function that has it. ``hashed``: the tables whose scans are the
    input of a hash, a merge join or a hashed subplan, which read all rows of the scans."""

    place: str
    scans: tuple[Scan, ...]
    hashed: tuple[str, ...]


@dataclass
class Planner:
    """Collects the plans of a connection. ``names``: object id → name of a table or an index. ``statement``: the name of the
    statement that is sent."""

    names: Mapping[int, str]
    statement: str = ""
    plans: list[Plan] = field(default_factory=list)

    def heard(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        fields = message.as_dict()
        if fields.get("message") == "plan:":
            place = _place(fields.get("context") or "") or self.statement
            self.plans.append(_plan(place, _parsed(fields["detail"]), self.names))


async def planning(connection: asyncpg.Connection, *, generic: bool = True) -> Planner:
    """Return the collector of all plans that ``connection`` makes from here on. ``generic``: all are generic plans."""
    rows = await connection.fetch("SELECT oid, relname FROM pg_class WHERE relnamespace = 'runyard'::regnamespace")
    planner = Planner({row["oid"]: row["relname"] for row in rows})
    connection.add_log_listener(planner.heard)
    mode = "force_generic_plan" if generic else "auto"
    for setting in (f"plan_cache_mode = {mode}", "debug_pretty_print = off", "client_min_messages = log"):
        await connection.execute(f"SET {setting}")
    await connection.execute("SET debug_print_plan = on")
    return planner


def _place(context: str) -> str:
    function = re.search(r"PL/pgSQL function (?:runyard\.)?(\w+)\(", context)
    return function[1] if function else ""


def _parsed(dump: str) -> Node:
    """Return the nodes of a dump. A field has the list of its values."""
    tokens = iter(_TOKEN.findall(dump))
    assert next(tokens) == "{"
    return _node(tokens)


def _node(tokens: Iterator[str]) -> Node:
    found: Node = {"": next(tokens)}
    values: list[Any] = []
    for token in tokens:
        if token == "}":
            return found
        if token.startswith(":"):
            values = found.setdefault(token[1:].rpartition(".")[2], [])
        else:
            values.append(_value(token, tokens))
    raise ValueError("the dump ends inside a node")


def _value(token: str, tokens: Iterator[str]) -> Any:
    if token == "{":
        return _node(tokens)
    if token not in ("(", "["):
        return token
    values = []
    for inner in tokens:
        if inner in (")", "]"):
            return values
        values.append(_value(inner, tokens))
    raise ValueError("the dump ends inside a list")


def _plan(place: str, statement: Node, names: Mapping[int, str]) -> Plan:
    tables = [
        names.get(int(entry["relid"][0]), "") if entry["rtekind"] == ["0"] else "" for entry in _listed(statement["rtable"])
    ]
    scans: list[Scan] = []
    hashed: set[str] = set()

    def visit(node: Node, whole: bool) -> None:
        """``whole``: all rows of the node are kept, because a node above it hashes or merges them."""
        kind = node[""]
        if kind in _SCANS and (table := tables[int(node["scanrelid"][0]) - 1]):
            scans.append(Scan(table, kind, *_index(node, names)))
            if whole:
                hashed.add(table)
        for child in _children(node):
            visit(child, whole or kind in ("HASH", "MERGEJOIN"))

    visit(statement["planTree"][0], False)
    hashed_plans = {
        int(node["plan_id"][0]) for node in _all(statement) if node[""] == "SUBPLAN" and node["useHashTable"] == ["true"]
    }
    for number, subplan in enumerate(_listed(statement["subplans"]), 1):
        visit(subplan, number in hashed_plans)
    return Plan(place, tuple(sorted(scans)), tuple(sorted(hashed)))


def _index(node: Node, names: Mapping[int, str]) -> tuple[str, int]:
    """Return the name of the index of a scan and the number of conditions on it. Of several indexes, return the fewest."""
    if node[""] == "BITMAPHEAPSCAN":
        parts = [each for each in _all(node["lefttree"]) if each[""] == "BITMAPINDEXSCAN"]
        found = [(names[int(each["indexid"][0])], len(_listed(each["indexqual"]))) for each in parts]
        return min(found, key=lambda each: each[1])
    conditions = sum(len(_listed(node.get(name, []))) for name in _CONDITIONS)
    return names[int(node["indexid"][0])] if "indexid" in node else "", conditions


def _children(node: Node) -> Iterator[Node]:
    for name in ("lefttree", "righttree", "subplan"):
        yield from (each for each in node.get(name, []) if isinstance(each, dict))
    for name in ("appendplans", "mergeplans", "bitmapplans"):
        yield from _listed(node.get(name, []))


def _listed(values: Any) -> list[Node]:
    """Return the nodes in the only value of a field, which is a list or null."""
    return [each for each in values[0] if isinstance(each, dict)] if values and isinstance(values[0], list) else []


def _all(value: Any) -> Iterator[Node]:
    if isinstance(value, dict):
        yield value
        for values in value.values():
            yield from _all(values)
    elif isinstance(value, list):
        for each in value:
            yield from _all(each)
