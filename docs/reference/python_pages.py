"""The pages of the folder ``python``: every public name of the modules that users import, from signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any, Final

MODULES: Final = {
    "runyard": "what programs and agents import",
    "runyard.models": "the values that calls take and return",
    "runyard.errors": "the errors; [their table](../errors.md) has codes and HTTP statuses",
    "runyard.hitl": "questions and approvals for in-process agents",
    "runyard.checkpointer": "stores of in-process agents",
    "runyard.testing": "tests of agents without servers",
}
"""Module → what it is for. The names are those of its ``__all__``, or of the classes that it exports."""
OTHERS: Final = {
    "runyard_api.http.app": ("asgi_app",),
    "runyard_api.http.principal": ("Principal",),
    "runyard_api.hosts.starlette": ("sse_response",),
    "runyard_api.hosts.django": ("sse_response", "blocking_sse_response"),
    "runyard.adapters.functions": ("message_agent",),
    "runyard.adapters.cubeloop_agent": ("serve",),
    "runyard.adapters.cubeloop_checkpointer": ("RunyardCheckpointer",),
    "runyard.adapters.langgraph_agent": ("serve",),
    "runyard.adapters.langgraph_saver": ("RunyardSaver",),
    "runyard.adapters.openai_agent": ("serve",),
    "runyard.adapters.openai_session": ("RunyardSession",),
    "runyard_backends.thread_files": ("export_threads", "import_threads"),
    "runyard_backends.cubepi": ("import_threads",),
}
"""Module → the names in it that pages of the documentation show."""
LINKS: Final = {
    "runyard.domain.size_limits": "[size limits](../../how-to/limits.md#fixed-limits)",
    "runyard.errors": "[`runyard.errors`](runyard.errors.md)",
}
"""Module → the page that shows users what the module defines."""
WIDTH: Final = 110


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each page. A value that several modules export is on the page of the first."""
    seen: set[int] = set()
    listed = []
    for name, purpose in MODULES.items():
        module = import_module(name)
        yield f"python/{name}.md", page(name, purpose, module, names_of(module), seen)
        listed.append(f"| [`{name}`]({name}.md) | {purpose} |")
    parts = [f"## {name}\n\n{entries(import_module(name), names, seen)}" for name, names in OTHERS.items()]
    yield "python/integrations.md", "\n".join(["# Integrations\n", *parts])
    listed.append("| [integrations](integrations.md) | the HTTP API in a program of your own, and other agent frameworks |")
    yield "python/README.md", "\n".join(["# Python\n", "| module | contents |", "| --- | --- |", *listed, ""])


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module. Modules among them have pages of their own."""
    found = getattr(module, "__all__", None) or [name for name, value in vars(module).items() if inspect.isclass(value)]
    return [name for name in sorted(found) if not name.startswith("_") and not inspect.ismodule(getattr(module, name))]


def page(name: str, purpose: str, module: ModuleType, names: list[str], seen: set[int]) -> str:
    return f"# {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n{entries(module, names, seen)}"


def entries(module: ModuleType, names: list[str] | tuple[str, ...], seen: set[int]) -> str:
    values = [(name, getattr(module, name)) for name in names]
    fresh = [(name, value) for name, value in values if not documented(value) or id(value) not in seen]
    seen |= {id(value) for _, value in fresh if documented(value)}
    return "\n".join(entry(module, name, value) for name, value in fresh)


def documented(value: Any) -> bool:
    """Whether the value itself has a docstring. ``Any`` has Python's own docstring, which does not describe an alias of it."""
    return (inspect.isclass(value) and value is not Any) or inspect.isfunction(value)


def entry(module: ModuleType, name: str, value: Any) -> str:
    """Return the section of one name."""
    if not documented(value):
        return value_entry(module, name, value)
    if inspect.isclass(value):
        return class_entry(name, value)
    return f"### {name}\n\n{code(signature(definition(value)))}\n{prose(value.__doc__)}\n"


def value_entry(module: ModuleType, name: str, value: Any) -> str:
    """Return the section of a constant or an alias, with the text below its definition."""
    assignment, text = assigned(module, name)
    shown = ast.unparse(assignment) if value is Any else repr(sorted(value) if isinstance(value, frozenset) else value)
    shown = shown if len(shown) < WIDTH else textwrap.shorten(shown, WIDTH, placeholder=" …")
    return f"### {name}\n\n{code(shown)}" + (f"\n{prose(text)}\n" if text else "")


def assigned(module: ModuleType, name: str) -> tuple[ast.stmt, str]:
    """Return the statement that assigns ``name``, in ``module`` or where the module imports it from, and the text below it."""
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(name == (each.asname or each.name) for each in node.names):
            return assigned(import_module("." * node.level + (node.module or ""), module.__package__), name)
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id == name:
            text = following.value if isinstance(following, ast.Expr) else None
            return node, text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""
    raise LookupError(f"{module.__name__} does not define {name}")


def class_entry(name: str, cls: type[Any]) -> str:
    """Return the section of a class: its fields, and its public methods and properties with those of its bases in runyard."""
    members: dict[str, ast.stmt] = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.startswith("runyard")]):
        for node in definition(base).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and public(node):
                members[node.name] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_"):
                members[node.target.id] = node
    init = members.pop("__init__", None)
    fields = [ast.unparse(node) for node in members.values() if isinstance(node, ast.AnnAssign)]
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object and not base.__name__.startswith("_"))
    head = f"class {name}({bases})" if bases else f"class {name}"
    body = [f"    {line}" for line in fields]
    if isinstance(init, ast.FunctionDef):
        head = signature(init).replace("def __init__", f"class {name}").removesuffix(" -> None")
    parts = [f"### {name}\n\n{code(chr(10).join([head, *body]))}\n{prose(cls.__doc__, name)}\n"]
    if same := sorted(name for name, value in vars(cls).items() if name not in members and alike(name, value)):
        parts.append(f"Calls that block, with the arguments of the async ones: {', '.join(f'`{name}`' for name in same)}.\n")
    methods = (node for node in members.values() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    parts += (
        f"#### {name}.{node.name}\n\n{code(signature(node))}\n{prose(ast.get_docstring(node), name)}\n" for node in methods
    )
    return "\n".join(parts)


def alike(name: str, value: Any) -> bool:
    """Whether a method is made from another one."""
    return inspect.isfunction(value) and not name.startswith("_") and value.__code__.co_name == "call"


def public(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether users call the method. Constructors are public, and of overloads the implementation."""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    hidden = any(mark == "overload" or "validator" in mark or "serializer" in mark for mark in marks)
    return (node.name == "__init__" or not node.name.startswith("_")) and not hidden


def definition(value: Any) -> Any:
    """Return the syntax tree of a class or a function. A class that is made by a call has no body."""
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(value)))
    except OSError:
        source = f"class {value.__name__}: ..."
    return ast.parse(source).body[0]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the first line of a function. A long one has a line for each parameter."""
    if node.args.args and node.args.args[0].arg in ("self", "cls"):
        node.args.args.pop(0)
    mark = "@property\n" if any("property" in ast.unparse(mark) for mark in node.decorator_list) else ""
    head = f"{'async ' if isinstance(node, ast.AsyncFunctionDef) else ''}def {node.name}"
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    whole = f"{head}({', '.join(parameters(node.args))}){result}"
    if len(whole) <= WIDTH:
        return mark + whole
    return f"{mark}{head}(\n" + "".join(f"    {each},\n" for each in parameters(node.args)) + f"){result}"


def parameters(given: ast.arguments) -> Iterator[str]:
    """Yield each parameter with its type and default, and the signs ``/`` and ``*``."""
    places = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(places) - len(given.defaults)), *given.defaults]
    for number, (argument, default) in enumerate(zip(places, defaults, strict=True), 1):
        yield parameter(argument, default)
        if number == len(given.posonlyargs):
            yield "/"
    if given.vararg:
        yield f"*{ast.unparse(given.vararg)}"
    elif given.kwonlyargs:
        yield "*"
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield parameter(argument, default)
    if given.kwarg:
        yield f"**{ast.unparse(given.kwarg)}"


def parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def code(text: str) -> str:
    return f"```py\n{text}\n```\n"


def prose(doc: str | None, owner: str = "") -> str:
    """Return a docstring in Markdown. ``owner``: the class that the docstring describes, or whose method it describes."""
    text = inspect.cleandoc(doc or "")
    text = re.sub(r":(\w+):`~?([\w.]+)`", lambda found: reference(found[1], found[2], owner), text)
    text = re.sub(r"``(.+?)``", r"`\1`", text)
    text = re.sub(r"::\n\n((?:    .*\n?|\n)+)", lambda found: ":\n\n" + code(textwrap.dedent(found[1]).strip()), text)
    return text.replace("<", "&lt;") if "```" not in text else text


def reference(role: str, target: str, owner: str) -> str:
    """Return the Markdown of a reference in a docstring of the class ``owner``.

    A member of another class keeps the name of its class. A name of another package keeps its modules, and so does a module.
    """
    *outer, name = target.split(".")
    if role == "mod" or (outer and outer[0].islower() and not outer[0].startswith("runyard")):
        return LINKS.get(target, f"`{target.lstrip('.')}`")
    return f"`{outer[-1]}.{name}`" if outer and outer[-1][0].isupper() and outer[-1] != owner else f"`{name}`"
