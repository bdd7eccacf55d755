"""Runs both type checkers over right and wrong uses of the public API."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import pytest

import salon_jobs
from salon_jobs import access, control, jobs, models, outbox, tenancy, testing
from salon_jobs.access import operations
from tests.docs.markdown import read, rows, section
from tests.interpreter import ROOT, run_command
from tests.support import public_names

ACCEPTED = ROOT / "tests/typing/accepted.py"
REFUSED = ROOT / "tests/typing/refused.py"
EXPORTING: Final = (salon_jobs, access, control, jobs, models, operations, outbox, tenancy, testing)
Flagged: TypeAlias = set[tuple[str, int]]
# A module and a name in it.
Name: TypeAlias = tuple[str, str]


@cache
def mypy() -> Flagged:
    """Return the lines that mypy --strict flags, of both files by one run."""
    options = ("--strict", "--no-pretty", "--hide-error-context")
    done = run_command(sys.executable, "-m", "mypy", *options, str(ACCEPTED), str(REFUSED), timeout_s=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {(name, int(line)) for name, line in re.findall(r"(\w+\.py):(\d+):(?:\d+:)? error", done.stdout)}


@cache
def pyright() -> Flagged:
    """Return the lines that pyright flags in strict mode; the project's own configuration leaves one file out."""
    with tempfile.TemporaryDirectory() as folder:
        for path in (ACCEPTED, REFUSED):
            shutil.copy(path, folder)
        config = Path(folder) / "pyrightconfig.json"
        settings = {"include": ["*.py"], "extraPaths": [str(ROOT)], "stubPath": str(ROOT / "typings")}
        config.write_text(json.dumps({**settings, "typeCheckingMode": "strict", "pythonVersion": "3.11"}))
        options = ("--outputjson", "--pythonpath", sys.executable, "-p", str(config))
        done = run_command(sys.executable, "-m", "pyright", *options, timeout_s=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found}


def expected_errors() -> set[int]:
    """Return the lines of refused.py that the checkers must flag."""
    lines = REFUSED.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# E")}


def used(path: Path) -> dict[Name, set[int]]:
    """Return the lines on which a file uses each name that it imports; to import one is not to use it."""
    tree = ast.parse(path.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    origins = {each.asname or each.name: (node.module or "", each.name) for node in imports for each in node.names}
    names: dict[Name, set[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in origins:
            names.setdefault(origins[node.id], set()).add(node.lineno)
    return names


def documented() -> set[Name]:
    """Return the names that the page of the public API lists, under their module or by their whole path."""
    page = read("docs/reference/public-api.md")
    modules = re.findall(r"^## `(salon_jobs[\w.]*)`$", page, re.MULTILINE)
    listed = {(module, row[0]) for module in modules for row in rows(section(page, f"## `{module}`"))}
    return listed | set(re.findall(r"`\"?(salon_jobs[\w.]*)\.([A-Z]\w+)", page))


CHECKERS = pytest.mark.parametrize("flagged", [mypy, pyright])


@CHECKERS
def test_gwt_01_right_uses_pass_the_type_checker(flagged: Callable[[], Flagged]) -> None:
    assert {(name, line) for name, line in flagged() if name != REFUSED.name} == set()


@CHECKERS
def test_gwt_02_wrong_uses_are_type_errors(flagged: Callable[[], Flagged]) -> None:
    assert {line for name, line in flagged() if name == REFUSED.name} == expected_errors()


def test_every_public_name_has_a_right_and_a_wrong_use() -> None:
    exported = {(module.__name__, name) for module in EXPORTING for name in public_names(module)}
    public, accepted, refused, expected = exported | documented(), used(ACCEPTED), used(REFUSED), expected_errors()
    assert public - accepted.keys() == set(), "add a right use of each to accepted.py"
    assert {name for name in public if not refused.get(name, set()) & expected} == set(), (
        "add a wrong use of each, on a line marked E, to refused.py"
    )
