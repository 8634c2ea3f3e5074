"""House rules for Lua: one file per command, a header that says what goes in and out, no script text in Python."""

import re
from pathlib import Path

import pytest

import runyard_backends.redis

PACKAGE = Path(runyard_backends.redis.__file__).parent
ROOT = PACKAGE.parents[2]
SCRIPTS = sorted((PACKAGE / "lua").glob("*.lua"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_has_its_header(path: Path) -> None:
    header = re.match(r"--\[\[\n(.*?)\n\]\]\n", path.read_text(), re.DOTALL)
    assert header, "a script starts with a block comment"
    for word in ("KEYS[1]", "ARGV", "Returns"):
        assert re.search(rf"^{re.escape(word)} +\S", header[1], re.MULTILINE), f"the header explains {word}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_used(path: Path) -> None:
    users = [file for file in PACKAGE.glob("*.py") if f'"{path.stem}"' in file.read_text()]
    including = [file for file in SCRIPTS if f"\n-- include {path.name}\n" in file.read_text()]
    assert users or including


def test_no_lua_in_python() -> None:
    sources = [file for folder in ("runner", "backends", "api") for file in (ROOT / folder).rglob("*.py")]
    assert sources
    assert not [str(file) for file in sources if "redis.call(" in file.read_text() or "KEYS[1]" in file.read_text()]
