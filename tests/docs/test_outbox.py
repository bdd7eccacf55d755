"""Looks that docs/outbox.md proves each claim by a test that exists."""

from __future__ import annotations

import re

from tests.docs.markdown import read, rows, section
from tests.docs.test_security import functions_of

PAGE = read("docs/outbox.md")
NAMED = set(re.findall(r"`(test_\w+)::(test_\w+)`", PAGE))


def test_every_proof_exists() -> None:
    assert len(NAMED) > 30
    assert [(file, name) for file, name in sorted(NAMED) if name not in functions_of(file)] == []


def test_every_claim_has_a_proof_and_every_proof_its_claim() -> None:
    proofs = dict(rows(section(PAGE, "## Proofs")))
    assert [claim for claim, tests in proofs.items() if "::test_" not in tests] == []
    claims = [
        cells[-1].removeprefix("[").removesuffix("](#proofs)") for cells in rows(section(PAGE, "## What is guaranteed"))
    ]
    assert len(claims) > 20
    assert claims == list(proofs)
