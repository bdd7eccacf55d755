"""Tasks of every kind. Each writes one row for its marker, and a line to a file, which no failover takes back."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from salon_jobs import Backoff, current_job, fan_out, store_task, task
from salon_jobs.jobs.options import KeyMode
from tests.chaos.failover.client import RUNS, marker_of, names, second_marker
from tests.chaos.failover.settings import OUTSIDE

_QUICK: Final = Backoff(base=timedelta(seconds=0.2), cap=timedelta(seconds=1))
_GATE_S: Final = 90.0


class FirstAttempt(RuntimeError):
    """Intended error of a flaky job's first attempt."""


@dataclass(frozen=True)
class Part:
    """Payload of one job of a chunk."""

    marker: str


def _run(marker: str) -> None:
    """Note outside the database that a handler runs."""
    file = os.open(Path(OUTSIDE, RUNS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{marker}\n".encode())
    finally:
        os.close(file)


def _done(marker: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO failover_done (marker) VALUES (%s)", [marker])


def _wait(gate: str) -> None:
    deadline = time.monotonic() + _GATE_S
    while not Path(OUTSIDE, gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.01)


@task(name="failover-system")
def system(marker: str) -> None:
    """Add a row outside the transaction that ends the job: at least once."""
    _run(marker)
    _done(marker)


@task(name="failover-finishing")
def finishing(marker: str) -> None:
    """Add a row in the transaction that ends the job."""
    _run(marker)
    with transaction.atomic():
        _done(marker)
        current_job().finish()


def _adding_a_row(kind: str, **options: Any) -> Any:
    """Declare a task that adds a row in the job's transaction."""

    @store_task(name=f"failover-{kind}", **options)
    def handler(store_id: UUID, marker: str) -> None:
        _run(marker)
        _done(marker)

    return handler


def _adding_a_row_under_a_key(kind: str, mode: KeyMode) -> Any:
    """Declare a task that adds a row for a marker under a key."""

    @store_task(name=f"failover-{kind}", job_key="{key}", job_key_mode=mode)
    def handler(store_id: UUID, key: str, marker: str) -> None:
        _run(marker)
        _done(marker)

    return handler


store = _adding_a_row("store")
once = _adding_a_row("once", at_most_once=True)
replace = _adding_a_row_under_a_key("replace", "replace")
preserve = _adding_a_row_under_a_key("preserve", "preserve_run_at")
dedupe = _adding_a_row_under_a_key("dedupe", "unsafe_dedupe")


@task(name="failover-once-outside", at_most_once=True)
def once_outside(marker: str) -> None:
    """Add a row outside the transaction that ends the job, and start once at most."""
    system.function(marker)


@store_task(name="failover-outside", atomic=False)
def outside(store_id: UUID, marker: str) -> None:
    """Add a row in a transaction of its own, before the job ends: at least once."""
    _run(marker)
    with transaction.atomic():
        _done(marker)


@store_task(name="failover-kept", keep_result=timedelta(hours=1))
def kept(store_id: UUID, marker: str) -> dict[str, str]:
    """Add a row, and keep a result."""
    _run(marker)
    _done(marker)
    return {"marker": marker}


@store_task(name="failover-flaky", backoff=_QUICK)
def flaky(store_id: UUID, marker: str) -> None:
    """Add a row, and fail the first time."""
    _run(marker)
    _done(marker)
    if current_job().attempt == 1:
        raise FirstAttempt(marker)


@store_task(name="failover-chunk", chunk=20)
def chunk(store_id: UUID, parts: list[Part]) -> None:
    """Add a row for each payload, in one transaction."""
    for part in parts:
        _run(part.marker)
        _done(part.marker)


@task(name="failover-fan")
def fan(marker: str) -> None:
    """Fan out to all stores in the transaction that ends the job."""
    _run(marker)
    with transaction.atomic():
        fan_out(fanned, marker=marker)
        _done(marker)
        current_job().finish()


@store_task(name="failover-fanned")
def fanned(store_id: UUID, marker: str) -> None:
    """Add a row for the store."""
    _run(f"{marker}@{store_id}")
    _done(f"{marker}@{store_id}")


@task(name="failover-cron")
def tick() -> None:
    """Add a row for the tick in the transaction that ends the job."""
    at = current_job().tick
    assert at is not None
    finishing.function(marker_of(at))


@task(name="failover-second")
def second() -> None:
    """Do the same for the tick of a schedule."""
    at = current_job().tick
    assert at is not None
    finishing.function(second_marker(at))


@store_task(name="failover-steps", atomic=False, backoff=_QUICK)
def steps(store_id: UUID, marker: str) -> None:
    """Add a row in each of two steps and in each round of a loop between them; fail the first time, in the midst."""
    _run(marker)
    first, *parts, last = names("steps", marker)
    job = current_job()
    job.step("first", _done, first)
    for part in job.cursor("parts", parts):
        if job.attempt == 1 and part == parts[-1]:
            raise FirstAttempt(marker)
        _done(part)
    job.step("last", _done, last)


@task(name="failover-held-system")
def held_system(marker: str, gate: str) -> None:
    """Wait for a gate without a transaction, then add a row."""
    _run(marker)
    _wait(gate)
    _done(marker)


@store_task(name="failover-held-outside", atomic=False)
def held_outside(store_id: UUID, marker: str, gate: str) -> None:
    """Wait for a gate without a transaction, and write nothing: only the end of the job needs the database."""
    _run(marker)
    _wait(gate)


@task(name="failover-held-once", at_most_once=True)
def held_once(marker: str, gate: str) -> None:
    """Wait for a gate and write nothing; start once at most."""
    _run(marker)
    _wait(gate)


@store_task(name="failover-held-store")
def held_store(store_id: UUID, marker: str, gate: str) -> None:
    """Wait for a gate in the job's transaction."""
    _run(marker)
    _wait(gate)
    _done(marker)
