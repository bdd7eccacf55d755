"""Looks that docs/security.md proves each claim by a test that exists, and names every side channel that is tested."""

from __future__ import annotations

import ast
import re

from tests.docs.markdown import ROOT, read, rows, section

PAGE = read("docs/security.md")
NAMED = set(re.findall(r"`(test_\w+)::(test_\w+)`", PAGE))


def functions_of(file: str) -> set[str]:
    """Return the names of the tests of a file, which is the only one of its name."""
    [path] = (ROOT / "tests").rglob(f"{file}.py")
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_proof_exists() -> None:
    assert len(NAMED) > 40
    assert [(file, name) for file, name in sorted(NAMED) if name not in functions_of(file)] == []


def test_every_claim_has_a_proof_and_every_proof_its_claim() -> None:
    proofs = dict(rows(section(PAGE, "## Proofs")))
    assert [claim for claim, tests in proofs.items() if "::test_" not in tests] == []
    claims: list[str] = []
    for heading in ("## What is guaranteed", "## Side channels"):
        found = [cells[-1].removeprefix("[").removesuffix("](#proofs)") for cells in rows(section(PAGE, heading))]
        assert len(found) > 15
        claims += found
    assert claims == list(proofs)


def test_every_side_channel_that_is_tested_is_written_down() -> None:
    assert functions_of("test_side_channels") == {name for file, name in NAMED if file == "test_side_channels"}
