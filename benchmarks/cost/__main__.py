"""Compares what one job costs in this tree and in another commit: processor time, part by part, and WAL (Linux).

Each tree has a server of its own, a worker of one process, and a client that adds jobs. They take turns: the worker is
stopped while its queue is filled, then goes on until it has done all jobs; or it stays stopped while the client adds
jobs. What counts is processor time, as the scheduler measures it, of each thread and each backend, so that waiting for
the disk, or for a processor that others use, does not. The figures are medians of the rounds, for one job.

The base is run with this tree's Python and packages: its own manage.py, and its own benchmarks/tasks.py and settings.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.cost.meter import WAL
from benchmarks.cost.tree import MEASURES, Tree, checked_out, described, last_release, opened
from benchmarks.processes import ROOT, ProcessFailed
from benchmarks.report import number

#: By measure and tree, the figures of each round, by part.
Rounds: TypeAlias = dict[str, dict[str, list[dict[str, float]]]]
_TREES: Final = ("base", "here")
# Jobs after which code is specialised, and plans are kept.
_WARM_UP: Final = 1000
# A part with less than this share of all, in both trees, is only in the sums.
_SHOWN: Final = 0.01


def main(arguments: Sequence[str]) -> int:
    """Measure both trees in turn, and print the table; 1 if that failed."""
    options = _parsed(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    try:
        with tempfile.TemporaryDirectory(prefix="salon-cost-") as name, ExitStack() as stack:
            folder = Path(name)
            paths = {"base": stack.enter_context(checked_out(options.base, folder)), "here": ROOT}
            facts = {tree: described(path) for tree, path in paths.items()}
            trees: dict[str, Tree] = {}
            for tree, path in paths.items():
                console.print(f"{tree}: {facts[tree]}")
                (folder / f"of-{tree}").mkdir()
                trees[tree] = stack.enter_context(opened(path, folder / f"of-{tree}"))
            rounds = _measured(trees, options.only or list(MEASURES), options.rounds, options.jobs, console)
    except ProcessFailed as error:
        console.print(str(error), markup=False)
        return 1
    console.print(_table(rounds))
    if options.json is not None:
        kept = {**facts, "jobs": options.jobs, "machine": machine.machine(), "unit": "µs; WAL: bytes", "rounds": rounds}
        options.json.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cost", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    help_ = "the commit to compare with, or the folder of another clone (default: the last release's tag)"
    parser.add_argument("--base", default=last_release(), help=help_)
    parser.add_argument("--jobs", type=int, default=10_000, help="how many jobs a round has (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds (default: %(default)s)")
    help_ = f"one of {', '.join(MEASURES)}; repeatable"
    parser.add_argument("--only", action="append", choices=list(MEASURES), metavar="MEASURE", help=help_)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures of each round go as well")
    options = parser.parse_args(arguments)
    if options.base is None:
        parser.error("there is no release yet: say which commit to compare with (make bench-cost BASE=…)")
    return options


def _measured(trees: Mapping[str, Tree], names: Sequence[str], rounds: int, jobs: int, console: Console) -> Rounds:
    found: Rounds = {}
    for name in names:
        found[name] = {which: [] for which in trees}
        for tree in trees.values():
            MEASURES[name](tree, min(jobs, _WARM_UP))
        for turn in range(rounds):
            for which, tree in list(trees.items())[:: -1 if turn % 2 else 1]:
                spent = MEASURES[name](tree, jobs)
                console.print(f"{name}, round {turn + 1}, {which}: {spent['all']:.1f} µs")
                found[name][which].append(spent)
    return found


def _table(rounds: Rounds) -> Table:
    table = Table(title="One job: processor time in µs, WAL in bytes")
    for name in ("part", *_TREES, "ratio"):
        table.add_column(name, justify="left" if name == "part" else "right")
    for measure, trees in rounds.items():
        table.add_section()
        least = min(median(spent["all"] for spent in trees[tree]) for tree in _TREES)
        for part in sorted({part for found in trees.values() for spent in found for part in spent}, key=_place):
            base, here = (median(spent.get(part, 0.0) for spent in trees[tree]) for tree in _TREES)
            if part == WAL or max(base, here) >= _SHOWN * least:
                table.add_row(f"{measure}, {part}", number(base), number(here), f"{here / base:.2f}" if base else "")
    return table


def _place(part: str) -> tuple[int, str]:
    """Return what sorts parts: the sum of all, each side with its parts after it, and the WAL."""
    return ("all", "worker", "client", "server", WAL).index(part.partition(":")[0]), part


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
