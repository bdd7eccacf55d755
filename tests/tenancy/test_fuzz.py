"""A little of the fuzz; ``make fuzz`` runs a million statements."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import new_store_id
from tests.tenancy.fuzz import coroutines
from tests.tenancy.fuzz.actor import Witness, canary
from tests.tenancy.fuzz.visits import run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Leave out the log lines of jobs that fail on purpose."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("statements", [3_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_store_sees_another_or_gets_lost(database: None, statements: int) -> None:
    witness = run(statements, seed=20260506)
    assert (witness.leaks, witness.lost, witness.surprises) == ([], [], [])
    assert witness.statements >= statements
    assert len(witness.visits) >= 8, witness.visits


@pytest.mark.parametrize(("statements", "at_once"), [(800, 40), pytest.param(3_000, 600, marks=pytest.mark.slow)])
def test_coroutines_on_shared_connections(database: None, statements: int, at_once: int, settings: Any) -> None:
    # Nobody writes heartbeats here, and after an outage a worker waits for a fresh one.
    settings.SALON_JOBS = {**settings.SALON_JOBS, "PROCESS_SILENT_AFTER": 3600}
    witness = coroutines.run(statements, seed=20261127, at_once=at_once, stores=at_once // 10, threads=8)
    assert (witness.leaks, witness.lost, witness.surprises) == ([], [], [])
    assert len(witness.visits) >= 8, witness.visits


def test_witness_notices_leak_and_loss(database: None) -> None:
    own, other = new_store_id(), new_store_id()
    witness = Witness(10)
    witness.judge([(own, canary(own))], own, "here")
    assert not witness.is_done
    for rows, store in (([(other, canary(other))], own), ([(own, canary(own))], None), ([(own, canary(other))], own)):
        witness.judge(rows, store, "here")
    assert len(witness.leaks) == 3
    witness.judge([], own, "here")
    assert witness.lost == [f"here: as {own} []"]
    assert witness.is_done
