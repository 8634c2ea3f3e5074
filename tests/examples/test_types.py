"""The Python of the documents and the examples that people copy, as type checkers read them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.examples.pages import PAGES, module_of, name_of
from tests.examples.programs import EXAMPLES, ROOT

COPIED: Final = ("chat_fastapi", "orders_django", "what_if")
"""The examples that strict checkers accept without a comment for them."""
STEPS: Final = Path(__file__).with_name("step_types.py")
PACKAGES: Final = [str(ROOT / folder) for folder in ("runner", "backends", "api")]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples and the file with wrong calls, under names of their own: each example has an ``app.py``."""
    folder = tmp_path_factory.mktemp("strict")
    for source in [STEPS, *(file for name in COPIED for file in (EXAMPLES / name).glob("*.py"))]:
        text = source.read_text(encoding="utf-8")
        assert not re.search(r"#\s*(type|pyright|mypy):", text), source
        (folder / f"{source.parent.name}_{source.name}").write_text(text, encoding="utf-8")
    return folder


def wrong_calls(folder: Path) -> set[tuple[str, int]]:
    """The lines in which checkers must find an error."""
    [copy] = folder.glob("*step_types.py")
    lines = copy.read_text(encoding="utf-8").splitlines()
    return {(copy.name, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_mypy_accepts_documents_and_examples(strict: Path, tmp_path: Path) -> None:
    """One call: most of its time is the reading of what runyard imports. It shares the cache of `make lint`."""
    for page in PAGES:
        if "```python" in page.read_text(encoding="utf-8"):
            module = tmp_path / f"page_{name_of(page)}.py"
            assert not module.exists(), f"two pages are named {page.name}"
            module.write_text(module_of(page), encoding="utf-8")
    files = [*sorted(tmp_path.glob("page_*.py")), *strict.glob("*.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--show-absolute-path", *files],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": os.pathsep.join(PACKAGES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    found = re.findall(r"^(.*?):(\d+): error: .*$", done.stdout, re.MULTILINE)
    assert {(Path(file).name, int(line)) for file, line in found} == wrong_calls(strict), done.stdout


def test_pyright_accepts_examples(strict: Path) -> None:
    config = {"include": ["."], "typeCheckingMode": "strict", "extraPaths": PACKAGES}
    (strict / "pyrightconfig.json").write_text(json.dumps(config), encoding="utf-8")
    checker = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "--project", strict]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    found = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in report["generalDiagnostics"]}
    assert found == wrong_calls(strict), done.stdout
