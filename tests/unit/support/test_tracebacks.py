"""Tracebacks as text: which frames they begin with, their bound, and what they never contain."""

from __future__ import annotations

import asyncio
import importlib
import sys
import traceback
import types
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

from runyard import Message, RunContext
from runyard.app import load_app
from runyard.errors import AppImportError, InvalidInputError
from runyard.support import tracebacks
from runyard.support.tracebacks import MAX_ERRORS, MAX_NOTE, MAX_TRACEBACK_BYTES, place_in, stack_text, traceback_text
from runyard.testing import Harness


def _raised(words: str = "no refund") -> BaseException:
    secret = "4242 4242"
    try:
        raise ValueError(f"{words}{secret[:0]}")
    except ValueError as error:
        return error


def _deep(levels: int) -> None:
    if levels:
        _shallow(levels - 1)
    raise KeyError("bottom")


def _shallow(levels: int) -> None:
    _deep(levels)


def test_a_traceback_names_file_line_code_and_error_and_no_values_of_variables() -> None:
    text = traceback_text(_raised())
    assert text is not None
    assert f'File "{__file__}", line ' in text and "raise ValueError(" in text
    assert text.endswith("ValueError: no refund\n")
    assert "4242 4242" not in text


def test_the_place_in_a_traceback_is_the_innermost_line_of_the_users_code() -> None:
    def refund() -> None:
        importlib.import_module("no_such_module_9")

    line = refund.__code__.co_firstlineno + 1
    with pytest.raises(ModuleNotFoundError) as found:
        refund()
    assert place_in(traceback_text(found.value) or "") == f"{__file__}:{line} in refund"
    library = f'  File "{asyncio.__file__}", line 7, in run\n'
    assert place_in(library) == f"{asyncio.__file__}:7 in run"
    assert place_in("[hidden]") is None and place_in("") is None


HEAD = "Traceback (most recent call last):\n"
REAL = '  File "/app.py", line 7, in pay\n    refund()\n'
TOLD = '  File "/told.py", line 9, in told\n'


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD}{REAL}ValueError: x\n{TOLD}",
        f"{HEAD}{REAL}ValueError: x\n{HEAD}{TOLD}",
        f"{HEAD}{TOLD}KeyError: 'x'\n\nDuring handling of …:\n\n{HEAD}{REAL}ValueError: x\n{TOLD}The child failed at b.py:1.\n",
        f"{HEAD}{REAL}ExceptionGroup: two\n\n{HEAD}ValueError: never raised\n",
        f"{HEAD}  File '<x>'\n\n  …\n{REAL}ValueError: x\n{TOLD}",
        f"Stack (most recent call last):\n{REAL}",
        f"{REAL}ValueError: x\n{TOLD}",
        '  + Exception Group Traceback (most recent call last):\n  |   File "/told.py", line 9, in told\n  | ExceptionGroup\n'
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "/app.py", line 7, in pay\n    | ValueError: x\n    | File "/told.py", line 9, in told\n',
    ],
)
def test_the_text_of_an_error_is_no_place(text: str) -> None:
    """K3: An error can quote lines that look like frames, for example the output of another process."""
    assert place_in(text) == "/app.py:7 in pay"


def test_the_place_of_an_error_that_quotes_frames() -> None:
    line = _raised.__code__.co_firstlineno + 3
    for words in (f"the tool failed\n{TOLD}", f"the tool failed\n{HEAD}{TOLD}", TOLD * 100):
        assert place_in(traceback_text(_raised(words)) or "") == f"{__file__}:{line} in _raised"


async def test_a_stack_of_an_agent_begins_at_the_first_frame_of_its_code() -> None:
    """The frames of the program's start, of the event loop and of runyard say nothing about the agent."""

    def look() -> str:
        return stack_text(list(traceback.walk_stack(sys._getframe()))[::-1])

    async def agent(ctx: RunContext) -> None:
        await ctx.append(Message.assistant(look()))

    async with Harness(agent) as harness:
        stack = (await harness.prompt("t", "hi")).text
    head, first, *_ = stack.splitlines()
    assert head == "Stack (most recent call last):"
    assert first.startswith(f'  File "{__file__}", line ') and first.endswith(", in agent")
    assert stack.count("  File ") == 2 and "in look" in stack


def test_a_stack_without_code_of_the_user_is_whole() -> None:
    def own() -> str:
        return stack_text([(sys._getframe(), 1)])

    here = types.FunctionType(own.__code__.replace(co_filename=tracebacks.__file__), globals())
    assert f'File "{tracebacks.__file__}", line 1, in own' in here()


def test_an_error_that_was_never_raised_has_no_traceback() -> None:
    assert traceback_text(ValueError("made")) is None


def test_a_traceback_contains_the_cause_before_the_error() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as cause:
            raise RuntimeError("outer") from cause
    except RuntimeError as error:
        text = traceback_text(error)
    assert text is not None
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("RuntimeError: outer")


def test_a_traceback_contains_the_errors_of_a_group() -> None:
    async def fail() -> None:
        raise OSError("one of two")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(main())
    text = traceback_text(found.value)
    assert text is not None and text.count("OSError: one of two") == 2


@pytest.mark.parametrize("words", ["x" * 100_000, "ä\n" * 50_000, "\0\ud800"])
def test_a_traceback_is_bounded_and_storable_whatever_the_error_says(words: str) -> None:
    text = traceback_text(_raised(words))
    assert text is not None and "raise ValueError(" in text
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES and "\0" not in text


@pytest.mark.parametrize("group", [False, True])
def test_the_notes_of_an_error_follow_its_text_also_if_the_text_is_cut(group: bool) -> None:
    """K3: The line of a failed child is in a note."""
    with pytest.raises(Exception) as found:
        raise ExceptionGroup("x" * 5000, [OSError()]) if group else ValueError("x" * 5000)
    found.value.add_note("The child failed at app.py:9 in pay.")
    for _ in range(9):
        found.value.add_note("n" * 5000)
    text = traceback_text(found.value)
    assert text is not None and "x …\nThe child failed at app.py:9 in pay.\nnnn" in text
    notes = [line for line in text.splitlines() if line.startswith("nnn")]
    assert len(notes) == MAX_ERRORS - 1 and {len(note) for note in notes} == {MAX_NOTE + 2} and notes[0].endswith("n …")
    assert text.count("x") < 1200 and place_in(text) is not None


@pytest.mark.parametrize("notes", ["text", 7, [object(), "b"], None])
def test_notes_of_any_type_do_not_fail(notes: object) -> None:
    error = _raised()
    error.__notes__ = notes  # type: ignore[assignment]
    text = traceback_text(error)
    assert text is not None and "ValueError: no refund\n" in text


def test_a_long_chain_and_a_deep_stack_keep_the_innermost_frame() -> None:
    error: BaseException = _raised("first")
    for _ in range(50):
        try:
            _deep(100)
        except KeyError as deep:
            deep.__context__ = error
            error = deep
    text = traceback_text(error)
    assert text is not None and len(text.encode()) <= MAX_TRACEBACK_BYTES
    assert text.rstrip().endswith("KeyError: 'bottom'") and 'raise KeyError("bottom")' in text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if name in before})
    return tmp_path


@pytest.mark.parametrize(
    ("source", "words", "line"),
    [
        ("import os\nos.environ['MISSING_9']\n", "KeyError: 'MISSING_9'", 2),
        ("x = 1\n\ndef f(:\n", "SyntaxError: invalid syntax", 3),
        ("import package_that_is_missing\n", "ModuleNotFoundError: No module named 'package_that_is_missing'", 1),
        ("import sys\nsys.exit('no configuration')\n", "SystemExit: no configuration", 2),
    ],
)
def test_an_import_that_fails_names_file_line_and_error_of_the_app(folder: Path, source: str, words: str, line: int) -> None:
    (folder / "deep_9.py").write_text(source)
    (folder / "broken_9.py").write_text("import deep_9\n")
    with pytest.raises(AppImportError) as found:
        load_app("broken_9:app")
    assert found.value.message == f"the import of broken_9:app failed at {folder / 'deep_9.py'}:{line}: {words}"
    text = found.value.details["traceback"]
    head, first, *_ = text.splitlines()
    assert head.startswith("Traceback") and f'File "{folder / "broken_9.py"}", line 1' in first
    assert "<frozen importlib" not in text and importlib.__file__ not in text and words in text


def test_a_syntax_error_of_the_app_itself_shows_no_frame_of_runyard(folder: Path) -> None:
    (folder / "broken_8.py").write_text("x = 1\n\ndef f(:\n")
    with pytest.raises(AppImportError) as found:
        load_app("broken_8:app")
    text = found.value.details["traceback"]
    assert text.splitlines()[:2] == ["Traceback (most recent call last):", f'  File "{folder / "broken_8.py"}", line 3']
    assert text.endswith("SyntaxError: invalid syntax\n") and "runyard" not in text


class Hook(SourceFileLoader):
    """A loader as packages install them, e.g. to check types at run time."""

    def get_code(self, fullname: str) -> CodeType | None:
        if fullname == "unloved_7":
            raise ValueError("this module is not checked")
        return super().get_code(fullname)


@pytest.fixture
def hooked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path_hooks", [FileFinder.path_hook((Hook, SOURCE_SUFFIXES)), *sys.path_hooks])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    return folder


def test_an_error_of_an_import_hook_begins_at_the_hook(hooked: Path) -> None:
    (hooked / "unloved_7.py").write_text("x = 1\n")
    with pytest.raises(AppImportError) as found:
        load_app("unloved_7:app")
    text = found.value.details["traceback"]
    assert f'File "{__file__}"' in text.splitlines()[1] and "in load_app" not in text


def test_a_syntax_error_behind_an_import_hook_shows_no_frame_of_the_hook(hooked: Path) -> None:
    (hooked / "broken_7.py").write_text("def f(:\n")
    with pytest.raises(AppImportError) as found:
        load_app("broken_7:app")
    text = found.value.details["traceback"]
    assert text.splitlines()[1] == f'  File "{hooked / "broken_7.py"}", line 1' and "get_code" not in text


def test_a_module_that_does_not_exist_is_no_failed_import(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"there is no module 'absent_9\.inner'") as found:
        load_app("absent_9.inner:app")
    assert not isinstance(found.value, AppImportError)
