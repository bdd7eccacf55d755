"""Declares the tasks that wait, as jobs do for another system."""

from __future__ import annotations

import asyncio

from benchmarks.peers.shared.rows.models import Row
from benchmarks.settings import BENCHMARK_WAIT_S
from salon_jobs import task


@task(name="bench-wait")
async def wait() -> None:
    """Wait."""
    await asyncio.sleep(BENCHMARK_WAIT_S)


@task(name="bench-wait-rows")
async def wait_between_rows() -> None:
    """Read a row, wait, write one."""
    row = await Row.objects.aget(pk=1)
    await asyncio.sleep(BENCHMARK_WAIT_S)
    await Row.objects.acreate(number=row.number)
