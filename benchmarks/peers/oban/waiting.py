"""Runs oban's jobs that wait; their rows are read and written by psycopg, from a pool of eight beside oban's own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvloop
from oban import Oban, worker
from oban.job import Job
from psycopg_pool import AsyncConnectionPool

_BATCH = 5_000
_CONNECTIONS = 8
_OWN_CONNECTIONS = 8
_WAIT_S = float(os.environ["WAIT_S"])

rows_pool = AsyncConnectionPool(
    os.environ["ROWS_URL"], min_size=_CONNECTIONS, max_size=_CONNECTIONS, open=False, kwargs={"autocommit": True}
)


@worker(queue="default")
class Wait:
    """Waits."""

    async def process(self, _: Job) -> None:
        """Wait."""
        await asyncio.sleep(_WAIT_S)


@worker(queue="default")
class WaitBetweenRows:
    """Reads a row, waits, writes one."""

    async def process(self, _: Job) -> None:
        """Do all that."""
        async with rows_pool.connection() as connection:
            found = await connection.execute("SELECT id, number FROM bench_row WHERE id = %s", [1])
            row = await found.fetchone()
        await asyncio.sleep(_WAIT_S)
        async with rows_pool.connection() as connection:
            written = await connection.execute("INSERT INTO bench_row (number) VALUES (%s) RETURNING id", [row[1]])
            await written.fetchone()


async def add(count: int, rows: int) -> None:
    """Add jobs."""
    oban = Oban(pool=await _pool())
    kind = WaitBetweenRows if rows else Wait
    for start in range(0, count, _BATCH):
        await oban.enqueue_many(kind.new({}) for _ in range(min(_BATCH, count - start)))


async def work(at_once: int, _: int) -> None:
    """Run jobs until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with rows_pool, Oban(pool=await _pool(), queues={"default": at_once}):
        await stop.wait()


async def _pool() -> object:
    return await Oban.create_pool(os.environ["DATABASE_URL"], min_size=4, max_size=_OWN_CONNECTIONS)


if __name__ == "__main__":
    uvloop.run({"add": add, "work": work}[sys.argv[1]](*map(int, sys.argv[2:])))
