"""The error tree: codes, HTTP statuses, pickling, the wire."""

import pickle
import re
from pathlib import Path

import pytest

from runyard import errors
from runyard.domain.runs import CODES_WITHOUT_CLASS
from runyard.errors import BY_CODE, RunyardError, from_dict


def tree(cls: type[RunyardError] = RunyardError) -> list[type[RunyardError]]:
    return [cls, *(sub for child in cls.__subclasses__() for sub in tree(child) if sub.__module__ == errors.__name__)]


ALL = tree()
ABSTRACT = {"ThreadError", "MessageError", "RunError", "HitlError"}
"""Bases that are never raised; they share their base's code."""


def test_codes_are_unique() -> None:
    codes = [cls.code for cls in ALL if cls.__name__ not in ABSTRACT]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_codes_and_statuses(cls: type[RunyardError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", cls.code)
    assert 400 <= cls.http_status <= 599
    assert cls.__doc__


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_errors_survive_pickling_and_the_wire(cls: type[RunyardError]) -> None:
    error = cls("what was wrong", run_id="r1", before=None, ids=["a"])
    for copy in (pickle.loads(pickle.dumps(error)), from_dict(error.to_dict())):
        assert (str(copy), copy.details) == ("what was wrong", {"run_id": "r1", "before": None, "ids": ["a"]})
        assert copy.code == error.code
        if cls.__name__ not in ABSTRACT:
            assert type(copy) is cls


def test_unknown_codes_become_plain_errors() -> None:
    """A newer server may know more."""
    error = from_dict({"code": "of_the_future", "message": "x", "details": {"a": 1}})
    assert type(error) is RunyardError and error.details == {"a": 1}
    assert type(from_dict({})) is RunyardError


def test_missing_details_are_empty() -> None:
    assert from_dict({"code": "run_ended", "message": "x", "details": None}).details == {}


def test_builtin_bases() -> None:
    """A4: where a builtin is documented, the class derives from both."""
    assert issubclass(errors.InvalidInputError, ValueError)
    assert issubclass(errors.HitlNotAllowedError, RuntimeError)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("ThreadNotFoundError", 404),
        ("ThreadAlreadyExistsError", 409),
        ("ThreadBusyError", 409),
        ("RunConflictError", 409),
        ("RunNotCompletedError", 409),
        ("NothingToRunError", 409),
        ("QueueFullError", 429),
        ("ForkBoundaryError", 409),
        ("HitlNotAllowedError", 422),
        ("HitlAmbiguousError", 409),
        ("HitlNoPendingRequestError", 404),
        ("HitlStaleAnswerError", 409),
        ("HitlInvalidAnswerError", 422),
        ("HitlAlreadyAnsweredError", 409),
        ("LeafMovedError", 409),
        ("MessageNotFoundError", 404),
        ("InvalidInputError", 400),
        ("ResultExpiredError", 410),
    ],
)
def test_documented_statuses(name: str, status: int) -> None:
    """A4: one status for each class."""
    assert getattr(errors, name).http_status == status


def test_errors_of_a_store_are_checkpointer_errors() -> None:
    for cls in (
        errors.RunNotCompletedError,
        errors.CapabilityMissingError,
        errors.HitlError,
        errors.ThreadError,
        errors.ForkBoundaryError,
    ):
        assert issubclass(cls, errors.CheckpointerError)


def test_the_drawn_tree_names_every_class() -> None:
    drawn = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", errors.__doc__ or ""))
    defined = {cls.__name__ for cls in ALL}
    assert defined <= drawn
    assert drawn - defined <= {"ValueError", "RuntimeError", "TimeoutError"}


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_class_has_the_documented_import_path(cls: type[RunyardError]) -> None:
    assert getattr(errors, cls.__name__) is cls and cls.__name__ in errors.__all__


def test_every_code_is_known() -> None:
    assert {cls.code for cls in ALL} == set(BY_CODE)


def test_every_code_of_an_error_in_the_source_is_documented() -> None:
    """The page of errors is generated from BY_CODE and CODES_WITHOUT_CLASS."""
    sql = re.compile(r"(?:'code', |refuse\()'([a-z_]+)'")
    python = re.compile(r"ErrorInfo\(\s*code=\"([a-z_]+)\"")
    root = Path(errors.__file__).parents[3]
    found = {"agent_error", "main_loop_blocked", "poison"}
    for pattern, files in ((sql, (root / "backends").rglob("functions/*.sql")), (python, root.rglob("*/runyard*/**/*.py"))):
        for file in files:
            if "conformance" not in file.parts:
                found |= set(pattern.findall(file.read_text(encoding="utf-8")))
    assert len(found) > 30
    assert found <= BY_CODE.keys() | CODES_WITHOUT_CLASS.keys()
    assert not BY_CODE.keys() & CODES_WITHOUT_CLASS.keys()
    page = (root / "docs/reference/errors.md").read_text(encoding="utf-8")
    assert {code for code in found if f"| `{code}` |" not in page} == set()
