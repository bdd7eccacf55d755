"""Runs pgqueuer's jobs that wait; their rows are read and written by asyncpg, from a pool of eight."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

_BATCH = 10_000
_MOST_CLAIMED = 500
_CONNECTIONS = 8
_WAIT_S = float(os.environ["WAIT_S"])


async def add(count: int, _: int) -> None:
    """Add jobs."""
    queries = Queries(await _driver())
    for start in range(0, count, _BATCH):
        size = min(_BATCH, count - start)
        await queries.enqueue(["wait"] * size, [None] * size, [0] * size)


async def work(at_once: int, rows: int) -> None:
    """Run jobs until SIGTERM."""
    queuer = PgQueuer(await _driver())
    pool = await asyncpg.create_pool(os.environ["ROWS_URL"], min_size=_CONNECTIONS, max_size=_CONNECTIONS)

    @queuer.entrypoint("wait")
    async def wait(_: Job) -> None:
        if rows:
            row = await pool.fetchrow("SELECT id, number FROM bench_row WHERE id = $1", 1)
        await asyncio.sleep(_WAIT_S)
        if rows:
            await pool.fetchval("INSERT INTO bench_row (number) VALUES ($1) RETURNING id", row["number"])

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    # It takes at least two batches at once.
    await queuer.run(batch_size=min(_MOST_CLAIMED, at_once // 2), max_concurrent_tasks=at_once)


async def _driver() -> AsyncpgDriver:
    return AsyncpgDriver(await asyncpg.connect(os.environ["DATABASE_URL"]))


if __name__ == "__main__":
    uvloop.run({"add": add, "work": work}[sys.argv[1]](*map(int, sys.argv[2:])))
