"""``python -m tests.mutants [--continue] [words of names …]``: remove one guard after the other and see that a test notices.

Where no test fails, a minute of chaos has to. Works on copies of the tree, one for each core. Adds each outcome to
``build/mutants.tsv``; ``--continue`` skips the mutants that this file has as caught. Ends with 1 unless all mutants are caught.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS
from tests.mutants.tree import ROOT, Interrupted, Outcome, Tree

RESULTS: Final = ROOT / "build" / "mutants.tsv"


def main() -> int:
    """Try the mutants whose names contain one of the words; without words, all of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="remove one guard after the other")
    parser.add_argument("words", nargs="*", help="parts of names; by default all mutants are tried")
    parser.add_argument("--continue", action="store_true", dest="goes_on", help=f"skip what {RESULTS.name} has as caught")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not arguments.words or any(word in mutant.name for word in arguments.words)]
    RESULTS.parent.mkdir(exist_ok=True)
    if not arguments.goes_on:
        RESULTS.write_text("", "utf-8")
    left = [mutant for mutant in chosen if not (found := _results().get(mutant.name)) or not found.caught]
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _try_all(left, os.cpu_count() or 1)
    except Interrupted:
        print("interrupted; --continue tries the others")
    return _summary(chosen)


def _interrupt(*_: object) -> None:
    raise Interrupted


def _results() -> dict[str, Outcome]:
    """The last outcome of each mutant that was tried."""
    rows = [line.split("\t") for line in RESULTS.read_text("utf-8").splitlines()]
    return {name: Outcome(outcome) for outcome, _, name in rows}


def _summary(chosen: Sequence[Mutant]) -> int:
    """Print the number of mutants for each outcome, and the names of those that are not caught."""
    found = _results()
    outcomes = {mutant.name: str(found.get(mutant.name, "not tried")) for mutant in chosen}
    caught = [name for name in outcomes if (outcome := found.get(name)) and outcome.caught]
    print()
    for outcome, count in Counter(outcomes.values()).most_common():
        print(f"{outcome:<18}{count:>6}")
    for name in outcomes.keys() - set(caught):
        print(f"{outcomes[name]:<18}{'':>9}{name}")
    print(f"{len(caught)} of {len(chosen)} mutants caught")
    return 0 if len(caught) == len(chosen) else 1


def _try_all(mutants: Sequence[Mutant], at_once: int) -> None:
    """Try mutants in ``at_once`` copies. Those with tests in the same files are tried in the same copy, the most first."""
    by_files: defaultdict[tuple[str, ...], list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_files[_files(mutant)].append(mutant)
    batches = sorted(by_files.values(), key=len, reverse=True)
    trees: SimpleQueue[Tree] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="runyard-mutants-") as scratch:
        for n in range(at_once):
            trees.put(Tree(Path(scratch) / f"tree{n}"))

        def work(batch: list[Mutant]) -> None:
            tree = trees.get()
            try:
                for mutant, outcome, seconds in _try_batch(batch, tree):
                    with RESULTS.open("a", encoding="utf-8") as file:
                        file.write(f"{outcome}\t{seconds:.1f}\t{mutant.name}\n")
                    print(f"{outcome:<18}{seconds:6.1f} s  {mutant.name}", flush=True)
            finally:
                trees.put(tree)

        pool = ThreadPoolExecutor(at_once)
        try:
            for _ in pool.map(work, batches):
                pass
        finally:
            pool.shutdown(cancel_futures=True)


def _try_batch(batch: Sequence[Mutant], tree: Tree) -> Iterator[tuple[Mutant, Outcome, float]]:
    """Try mutants whose tests are in the same files. All tests run once with all guards in place."""
    pass_together = tree.passes(_tests_of_all(batch))
    for mutant in batch:
        began = time.monotonic()
        fit = pass_together or tree.passes(mutant.tests)
        outcome = tree.try_out(mutant) if fit else Outcome.UNFIT
        yield mutant, outcome, time.monotonic() - began


def _files(mutant: Mutant) -> tuple[str, ...]:
    return tuple(argument for argument in mutant.tests if argument.startswith("tests/"))


def _tests_of_all(batch: Sequence[Mutant]) -> Sequence[str]:
    """Arguments for pytest that select the tests of all mutants of a batch."""
    if any("-k" not in mutant.tests for mutant in batch):
        return _files(batch[0])
    chosen = dict.fromkeys(mutant.tests[mutant.tests.index("-k") + 1] for mutant in batch)
    return (*_files(batch[0]), "-k", " or ".join(f"({words})" for words in chosen))


if __name__ == "__main__":
    sys.exit(main())
