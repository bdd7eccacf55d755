"""Checks how docstrings begin: a class's with a noun phrase, a function's with an imperative."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import salon_jobs

PACKAGE = Path(salon_jobs.__file__).parent
QUESTIONS = frozenset({"What", "Whatever", "How", "Where", "When", "Whether", "Which", "Who", "Whose", "Why"})
#: beginnings of a clause, where a function needs an imperative
CLAUSES = QUESTIONS | {"A", "An", "The", "If", "It", "Returns", "Yields", "Has"}


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(each).rpartition(".")[2] for each in function.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def badly_begun(source: str) -> Iterator[str]:
    """Yield the classes and functions whose docstrings begin with a clause."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef():
                clauses = QUESTIONS
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not is_property(node):
                clauses = CLAUSES
            case _:
                continue
        first, *_ = (ast.get_docstring(node) or "Nothing").split()
        if first in clauses:
            yield f"line {node.lineno}, {node.name}: {first} …"


def test_docstrings_begin_as_they_should() -> None:
    sources = {str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert len(sources) > 200
    assert [f"{name}, {found}" for name, source in sources.items() for found in badly_begun(source)] == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('class A:\n    """What it is."""', 1),
        ('class A:\n    """Number of jobs."""', 0),
        ('def a():\n    """Whether it runs."""', 1),
        ('def a():\n    """The number of jobs."""', 1),
        ('async def a():\n    """Returns a number."""', 1),
        ('class A:\n    @property\n    def a(self):\n        """Whether it runs."""', 0),
        ('def a():\n    """Return whether it runs."""', 0),
        ("def a():\n    pass", 0),
    ],
)
def test_clauses_are_found(source: str, count: int) -> None:
    assert len(list(badly_begun(source))) == count
