"""Looks that the pages on guarantees prove each claim by a test that exists, and name every side channel tested."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.docs.markdown import ROOT, read, rows, section

# The sections with the claims of each page, the fewest claims in each section, and the fewest tests named.
PAGES = {
    "docs/security.md": (("## What is guaranteed", "## Side channels"), 15, 40),
    "docs/outbox.md": (("## What is guaranteed",), 20, 30),
}


def named(page: str) -> set[tuple[str, str]]:
    return set(re.findall(r"`(test_\w+)::(test_\w+)`", read(page)))


@cache
def functions_of(file: str) -> set[str]:
    """Return the names of the tests of a file, which is the only one of its name."""
    [path] = (ROOT / "tests").rglob(f"{file}.py")
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize("page", PAGES)
def test_named_proofs_exist(page: str) -> None:
    assert len(named(page)) > PAGES[page][2]
    assert [(file, name) for file, name in sorted(named(page)) if name not in functions_of(file)] == []


@pytest.mark.parametrize("page", PAGES)
def test_claims_and_proofs_match(page: str) -> None:
    headings, fewest, _ = PAGES[page]
    text = read(page)
    proofs = dict(rows(section(text, "## Proofs")))
    assert [claim for claim, tests in proofs.items() if "::test_" not in tests] == []
    claims: list[str] = []
    for heading in headings:
        found = [cells[-1].removeprefix("[").removesuffix("](#proofs)") for cells in rows(section(text, heading))]
        assert len(found) > fewest
        claims += found
    assert claims == list(proofs)


def test_tested_side_channels_are_documented() -> None:
    of_page = {name for file, name in named("docs/security.md") if file == "test_side_channels"}
    assert functions_of("test_side_channels") == of_page
