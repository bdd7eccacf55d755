"""Waits for what jobs return, one by one, while others wait for jobs that do not end; all in one process."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

from asgiref.sync import sync_to_async
from django.db import connection

from benchmarks.framework_tasks import echo
from benchmarks.processes import print_figures
from benchmarks.watch import percentile
from salon_jobs.backend import await_result

_WARM_UP = 10
_PATIENCE_S = 60.0


def main(waiting: str, count: str) -> None:
    """Have so many wait, and measure so many answers."""
    asyncio.run(_answers(int(waiting), int(count)))


async def _answers(waiting: int, count: int) -> None:
    later = echo.using(run_after=datetime.now(UTC) + timedelta(hours=1))
    others = [asyncio.ensure_future(await_result(await later.aenqueue(0), 3600)) for _ in range(waiting)]
    took: list[float] = []
    for number in range(-_WARM_UP, count):
        await asyncio.sleep(random.uniform(0.02, 0.06))  # noqa: S311 - no secret
        began = time.perf_counter()
        answer = await await_result(await echo.aenqueue(number), _PATIENCE_S)
        if number >= 0:
            took.append((time.perf_counter() - began) * 1000)
        if answer != number:
            raise ValueError(f"{number} was answered by {answer!r}")
    connections = await sync_to_async(_own_connections)()
    print_figures(
        p50=percentile(took, 0.5),
        p99=percentile(took, 0.99),
        waiting=sum(not each.done() for each in others),
        connections=connections,
    )


def _own_connections() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = current_user")
        [number] = cursor.fetchone()
        return int(number)
