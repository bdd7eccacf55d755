"""Runs both type checkers over right and wrong uses of the public API."""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

import salon_jobs
from salon_jobs import access, control, jobs, models, outbox, tenancy, testing
from salon_jobs.access import operations
from tests.docs.markdown import read, rows, section
from tests.interpreter import ROOT, run_command
from tests.support import public_names

USES: Final = ROOT / "tests/typing/uses.py"
EXPORTING: Final = (salon_jobs, access, control, jobs, models, operations, outbox, tenancy, testing)


@cache
def flagged_by(checker: str) -> set[int]:
    with TemporaryDirectory() as folder:
        if checker == "mypy":
            words = ["--strict", "--no-pretty", "--hide-error-context", str(USES)]
        else:  # the project's own configuration leaves the file out
            shutil.copy(USES, folder)
            config = Path(folder) / "pyrightconfig.json"
            settings = {"include": ["*.py"], "extraPaths": [str(ROOT)], "stubPath": str(ROOT / "typings")}
            config.write_text(json.dumps({**settings, "typeCheckingMode": "strict", "pythonVersion": "3.11"}))
            words = ["--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
        done = run_command(sys.executable, "-m", checker, *words, timeout_s=600)
    assert done.returncode == 1, done.stdout + done.stderr
    if checker == "mypy":
        return {int(line) for line in re.findall(r"uses\.py:(\d+):(?:\d+:)? error", done.stdout)}
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    return {each["range"]["start"]["line"] + 1 for each in found}


def wrong_lines() -> set[int]:
    return {number for number, line in enumerate(USES.read_text().splitlines(), 1) if line.endswith("# E")}


def used() -> dict[str, set[int]]:
    """Return the lines on which each imported name is used, also one of an imported module; to import is not to use."""
    tree = ast.parse(USES.read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    origins = {each.asname or each.name: f"{node.module}.{each.name}" for node in imports for each in node.names}
    found: dict[str, set[int]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in origins:
                found.setdefault(origins[name], set()).add(node.lineno)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in origins:
                found.setdefault(f"{origins[module]}.{name}", set()).add(node.lineno)
            case _:
                continue
    return found


def public() -> set[str]:
    """Return the names that modules export, and those that the page of the public API lists or writes out."""
    exported = {f"{module.__name__}.{name}" for module in EXPORTING for name in public_names(module)}
    page = read("docs/reference/public-api.md")
    modules = re.findall(r"^## `(salon_jobs[\w.]*)`$", page, re.MULTILINE)
    listed = {f"{module}.{row[0]}" for module in modules for row in rows(section(page, f"## `{module}`"))}
    return exported | listed | set(re.findall(r"`\"?(salon_jobs[\w.]*\.[A-Z]\w+)", page))


@pytest.mark.process
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_gwt_01_right_uses_pass(checker: str) -> None:
    assert flagged_by(checker) - wrong_lines() == set()


@pytest.mark.process
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_gwt_02_wrong_uses_are_errors(checker: str) -> None:
    assert wrong_lines() - flagged_by(checker) == set()


def test_public_names_have_both_uses() -> None:
    """Each has a right use and a wrong one in uses.py, the latter on a line that ends in E."""
    wrong, uses = wrong_lines(), used()
    lines = {name: uses.get(name, set()) for name in public()}
    assert {name for name, found in lines.items() if not found - wrong} == set()
    assert {name for name, found in lines.items() if not found & wrong} == set()
