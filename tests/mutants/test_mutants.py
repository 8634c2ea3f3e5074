"""The list of mutants fits the tree. `make mutants` shows that each of them is caught."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.mutant import Edit, Mutant
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_replaces_is_there_once_and_so_are_its_tests(mutant: Mutant) -> None:
    for edit in mutant.edits:
        assert (ROOT / edit.file).read_text("utf-8").count(edit.old) == 1
    assert all((ROOT / argument).is_file() for argument in mutant.tests if argument.startswith("tests/"))


def test_names_are_unique() -> None:
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]


def test_an_edit_that_does_not_fit_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("guard guard")
    with pytest.raises(ValueError, match="2 times"):
        Edit("file", "guard", "").apply(tmp_path)
    Edit("file", "guard guard", "open").apply(tmp_path)
    assert (tmp_path / "file").read_text() == "open"
