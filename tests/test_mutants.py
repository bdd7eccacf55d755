"""Compares the mutants with the code that they change, and with the tests that kill them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants import KILLERS, MUTANTS, ROOT, Mutant, MutantInvalid, page_of, read_killers, read_mutants

ALL = read_mutants(MUTANTS.read_text(encoding="utf-8"))
ENTRY = "a-name: It breaks.\nfile.sql\n-old\n-lines\n+new\ntests/test_x.py::test_it"


@cache
def functions_of(path: Path) -> set[str]:
    """Return the names of the test functions in a file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def exists(test: str) -> bool:
    path, *names = test.split("::")
    return (ROOT / path).is_file() and set(names) <= functions_of(ROOT / path)


def test_its_text_and_tests_exist() -> None:
    for mutant in ALL:
        mutant.change((ROOT / "salon_jobs" / mutant.file).read_text(encoding="utf-8"))
    assert [(mutant.name, test) for mutant in ALL for test in mutant.tests if not exists(test)] == []


def test_page_names_every_killer() -> None:
    page = KILLERS.read_text(encoding="utf-8")
    killers = read_killers(page)
    assert page == page_of(ALL, killers)
    assert [mutant.name for mutant in ALL if killers.get(mutant.name) not in mutant.tests] == []


def test_entry_is_read_as_written() -> None:
    other = ENTRY.replace("a-name", "another").replace("\n+new", "")
    first, second = read_mutants(f"# A comment\n\n{ENTRY}\n\n\n{other}\n")
    assert first == Mutant("a-name", "It breaks.", "file.sql", "old\nlines", "new", ("tests/test_x.py::test_it",))
    assert first.change("an old\nlines.") == "an new."
    assert (second.name, second.new) == ("another", "")


@pytest.mark.parametrize("missing", ["a-name: ", "\nfile.sql", "\n-old\n-lines", "\ntests/test_x.py::test_it"])
def test_incomplete_entry_is_refused(missing: str) -> None:
    with pytest.raises(MutantInvalid, match="write a name and a sentence"):
        read_mutants(ENTRY.replace(missing, ""))


def test_second_of_a_name_is_refused() -> None:
    with pytest.raises(MutantInvalid, match="a-name: another mutant has this name"):
        read_mutants(f"{ENTRY}\n\n{ENTRY}")


@pytest.mark.parametrize(("source", "count"), [("new\nlines", 0), ("old\nlines and old\nlines", 2)])
def test_text_must_occur_once(source: str, count: int) -> None:
    [mutant] = read_mutants(ENTRY)
    with pytest.raises(MutantInvalid, match=rf"a-name: its text occurs {count} times in salon_jobs/file\.sql"):
        mutant.change(source)
