"""Small changes that break the code, each with the tests that must fail: ``python -m tests.mutants [NAME …]``.

They are in ``mutants.txt``. Each is made in a copy of the project, one after the other, and its tests run there, on one
server for all. A mutant whose tests pass has survived, and fails the run. ``mutants.md`` says which test kills which.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.table import Column, Table

from project.local.postgres import EmbeddedPostgres

ROOT: Final = Path(__file__).resolve().parents[1]
MUTANTS: Final = Path(__file__).with_suffix(".txt")
KILLERS: Final = Path(__file__).with_suffix(".md")
# Longer than any of the tests takes on a busy machine.
_LIMIT_S: Final = 900.0
_OPTIONS: Final = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
_FAILED: Final = re.compile(r"^FAILED (\S+::\w+)", re.MULTILINE)
_ROW: Final = re.compile(r"^\| `(?P<name>[a-z-]+)` \|.*\| `(?P<test>\S+)` \|$", re.MULTILINE)
_HEADER: Final = """# Mutants

Each of these small changes (`mutants.txt`) breaks the code, and a test fails. `make mutants` writes this page.

| Mutant | What it breaks | Killed by |
|---|---|---|
"""


class MutantInvalid(Exception):
    """Raised for a mutant that is not written as ``mutants.txt`` says, or whose text is not in the code once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: ``old`` becomes ``new`` in ``file``, a path below ``salon_jobs/``, and one of ``tests`` fails."""

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def change(self, source: str) -> str:
        """Return the text of the file with the change. Raises MutantInvalid unless the old text occurs once."""
        if (count := source.count(self.old)) != 1:
            raise MutantInvalid(f"{self.name}: its text occurs {count} times in salon_jobs/{self.file}")
        return source.replace(self.old, self.new)


def read_mutants(text: str) -> list[Mutant]:
    """Read the mutants of ``mutants.txt``. Raises MutantInvalid."""
    mutants: list[Mutant] = []
    for block in re.split(r"\n{2,}", text.strip()):
        head, *lines = [line for line in block.split("\n") if not line.startswith("#")] or [""]
        if not head:
            continue
        name, separator, breaks = head.partition(": ")
        file, *lines = lines or [""]
        old, new = ("\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")
        tests = tuple(line for line in lines if line[0] not in "-+")
        mutant = Mutant(name, breaks, file, old, new, tests)
        is_file = re.fullmatch(r"\w[\w/.]+", file)
        if not (re.fullmatch("[a-z-]+", name) and separator and is_file and old and old != new and tests):
            raise MutantInvalid(f"{head}: write a name and a sentence, a file, the old and new text, and tests")
        if name in {other.name for other in mutants}:
            raise MutantInvalid(f"{name}: another mutant has this name")
        mutants.append(mutant)
    return mutants


def read_killers(page: str) -> dict[str, str]:
    """Return the test that kills each mutant, as the page says."""
    return {row["name"]: row["test"] for row in _ROW.finditer(page)}


def page_of(mutants: Iterable[Mutant], killers: Mapping[str, str]) -> str:
    """Return the page, without mutants that no test is known to kill."""
    known = [mutant for mutant in mutants if mutant.name in killers]
    return _HEADER + "".join(f"| `{each.name}` | {each.breaks} | `{killers[each.name]}` |\n" for each in known)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How tests ended: the one that ``failed`` first, or a ``fault``, which is none of a test; neither: they passed.

    ``said`` is the end of what pytest wrote.
    """

    seconds: float
    failed: str = ""
    fault: str = ""
    said: str = ""

    def __str__(self) -> str:
        return f"{self.failed or self.fault or 'survived'} ({self.seconds:.0f} s)"


class Copy:
    """Copy of a project's tracked files in a folder, with its environment, where tests run."""

    def __init__(self, root: Path, folder: Path, server_url: str) -> None:
        self._folder = folder
        self._environment = {**os.environ, "DATABASE_URL_BOOTSTRAP": server_url}
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
        for name in filter(None, tracked.stdout.split("\0")):
            if (root / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        (folder / ".venv").symlink_to((root / ".venv").resolve())

    def try_out(self, mutant: Mutant) -> Outcome:
        """Make the change, run its tests until one fails, and take the change back. Raises MutantInvalid."""
        path = self._folder / "salon_jobs" / mutant.file
        source = path.read_text(encoding="utf-8")
        _write(path, mutant.change(source))
        try:
            return self.run(mutant.tests, "-x")
        finally:
            _write(path, source)

    def run(self, tests: Sequence[str], *options: str) -> Outcome:
        """Run tests."""
        command = [sys.executable, "-m", "pytest", *_OPTIONS, *options, *tests]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self._folder,
                env=self._environment,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            return Outcome(_LIMIT_S, fault="its tests do not end")
        seconds, said = time.monotonic() - began, done.stdout[-5000:]
        failed = _FAILED.search(done.stdout)
        if done.returncode == 1 and failed is not None:
            return Outcome(seconds, failed[1], said=said)
        # If it is 1, a fixture failed: perhaps nothing can be migrated any more, so no test says anything.
        return Outcome(seconds, fault=f"pytest ended with {done.returncode}" if done.returncode else "", said=said)


def _write(path: Path, text: str) -> None:
    """Write a file of the copy, and forget its bytecode: two texts of equal size written in one second look alike."""
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".py":
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_mutants(mutants: Sequence[Mutant], console: Console) -> dict[str, Outcome] | None:
    """Try out the mutants and return what became of them; None if their tests fail without any change."""
    outcomes: dict[str, Outcome] = {}
    with EmbeddedPostgres(fsync=False) as server, TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(ROOT, Path(folder), server.url)
        before = copy.run(list(dict.fromkeys(test for mutant in mutants for test in mutant.tests)))
        if before.failed or before.fault:
            console.print(f"{before.said}\nwithout any change: {before}", markup=False, soft_wrap=True)
            return None
        console.print(f"without any change, their tests pass ({before.seconds:.0f} s)")
        for mutant in mutants:
            outcomes[mutant.name] = outcome = copy.try_out(mutant)
            said = f"{outcome.said}\n" if outcome.fault else ""
            console.print(f"{said}{mutant.name}: {outcome}", markup=False, soft_wrap=True)
    return outcomes


def main(arguments: Sequence[str]) -> int:
    """List mutants or try them out; return 1 if one survives, or if its tests could not run."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these mutants alone")
    parser.add_argument("--list", action="store_true", help="list the mutants and try out none")
    parser.add_argument(
        "--table", type=Path, default=KILLERS, metavar="FILE", help="where to write which test kills which"
    )
    options = parser.parse_args(arguments)
    mutants = read_mutants(MUTANTS.read_text(encoding="utf-8"))
    if unknown := set(options.names) - {mutant.name for mutant in mutants}:
        parser.error(f"no mutant is named {', '.join(sorted(unknown))}; --list names them")
    chosen = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table("mutant", "what it breaks", *(() if options.list else (Column("killed by", overflow="fold"),)))
    if options.list:
        for mutant in chosen:
            table.add_row(mutant.name, mutant.breaks)
        console.print(table)
        return 0
    try:
        outcomes = run_mutants(chosen, console)
    except KeyboardInterrupt:
        return 130
    if outcomes is None:
        return 1
    for mutant in chosen:
        outcome = outcomes[mutant.name]
        table.add_row(mutant.name, mutant.breaks, str(outcome))
    console.print(table)
    killers = read_killers(options.table.read_text(encoding="utf-8")) if options.table.exists() else {}
    killers = {name: test for name, test in killers.items() if name not in outcomes}
    killers |= {name: outcome.failed for name, outcome in outcomes.items() if outcome.failed}
    options.table.write_text(page_of(mutants, killers), encoding="utf-8")
    return 0 if all(outcome.failed for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
