"""What the packages import, pip installs with them: a module that only happens to be there fails on the next machine."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = {"runyard": "runner", "runyard_backends": "backends", "runyard_api": "api"}
"""Of each, the folder that it is in."""
FOR_TESTS = {"pytest", "pytest_asyncio"}
"""What ``runyard_backends.conformance`` needs of the one who runs it."""
OF_HOSTS = {"psycopg", "sqlalchemy", "django"}
"""What a host brings whose connection it is."""


def imported(package: str) -> Iterator[tuple[str, Path]]:
    """(top-level module, file) of everything from elsewhere that the package's files import, wherever in the file."""
    for path in (ROOT / PACKAGES[package] / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                modules = [node.module]
            else:
                continue
            for module in modules:
                name = module.partition(".")[0]
                if name not in sys.stdlib_module_names and name not in PACKAGES:
                    yield name, path


def required() -> set[str]:
    """The distributions that runyard and those of its extras that are no tools ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = (
        *("server", "http", "client", "sqlite", "mysql", "testing"),
        *("agents", "cubeloop", "openai-agents", "langgraph"),
    )
    extras = (text for extra in names for text in project["optional-dependencies"][extra])
    return {named(Requirement(text).name) for text in (*project["dependencies"], *extras)}


def named(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_import_is_a_dependency(package: str) -> None:
    owners = packages_distributions()
    allowed = required() | {"pydantic-core"}  # its types are part of pydantic's interface
    for module, path in imported(package):
        if module in FOR_TESTS | OF_HOSTS:
            continue
        found = {named(name) for name in owners.get(module, ())}
        assert found & allowed, f"{path.relative_to(ROOT)} imports {module}, which pyproject.toml does not ask for"
