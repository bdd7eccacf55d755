"""Declares the tasks that the benchmark runs: some do nothing, one takes 5 ms, some note when they started."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from django.db import transaction

from benchmarks.settings import BENCHMARK_MARKS
from salon_jobs import store_task, task
from salon_jobs.models import Limit


@task(name="bench-noop")
def noop() -> None:
    """Do nothing."""


@store_task(name="bench-store-noop")
def store_noop(store_id: UUID) -> None:
    """Do nothing, inside the store's own transaction."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Payload of one job of a chunk."""


@store_task(name="bench-store-chunk", chunk=100)
def store_chunk(store_id: UUID, payloads: list[Nothing]) -> None:
    """Do nothing, for up to a hundred jobs inside one transaction of the store."""


@store_task(name="bench-store-query")
def store_query(store_id: UUID) -> None:
    """Make one query, inside the store's own transaction."""
    Limit.objects.filter(pk=0).exists()


@task(name="bench-query")
def query() -> None:
    """Make one query, inside a transaction."""
    with transaction.atomic():
        Limit.objects.filter(pk=0).exists()


QUERIES = ("bench-store-query", "bench-query")


@store_task(name="bench-fan-out", job_key="bench:{store_id}:{day}", job_key_mode="preserve_run_at")
def fanned_out(store_id: UUID, day: str) -> None:
    """Do nothing; its key makes the fan-out idempotent."""


@store_task(name="bench-store-five-ms", atomic=False)
def store_five_ms(store_id: UUID) -> None:
    """Take 5 ms, as a job does that waits for something."""
    time.sleep(0.005)


@task(name="bench-mark")
def mark(added_ns: int) -> None:
    """Note when the job was added and when it started, on the machine's monotonic clock."""
    _note(added_ns)


@store_task(name="bench-store-mark", atomic=False)
def store_mark(store_id: UUID, added_ns: int) -> None:
    """Note when the job was added and when it started; take 5 ms."""
    _note(added_ns)
    time.sleep(0.005)


def _note(added_ns: int) -> None:
    started_ns = time.monotonic_ns()
    with Path(BENCHMARK_MARKS).open("a") as marks:
        marks.write(f"{added_ns} {started_ns}\n")
