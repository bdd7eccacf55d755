"""Runs jobs that wait as coroutines of one bare loop, and their queries by Django's ORM on a few bare threads.

They are claimed by our statement and ended by our statement in batches, on a connection each, and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from benchmarks.ceilings.claims import BATCH, claim, connect, register
from benchmarks.peers.shared.rows.models import Row
from benchmarks.settings import BENCHMARK_WAIT_S
from salon_jobs.db import statements

_GATHER_S: Final = 0.01
_LEASE: Final = 9


async def main(task: str, at_once: int, threads: int) -> None:
    """Work until killed."""
    due: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue(BATCH)
    ended: list[tuple[Any, ...]] = []
    with connect() as claiming, connect() as finishing:
        process_id = register(claiming)
        await asyncio.gather(
            _claim(due, task, claiming, process_id),
            _finish(ended, finishing, process_id),
            *_coroutines(due, ended, at_once, ThreadPoolExecutor(threads) if task == "bench-wait-rows" else None),
        )


async def _claim(due: asyncio.Queue[tuple[Any, ...]], task: str, connection: Any, process_id: int) -> None:
    while jobs := await asyncio.to_thread(claim, connection, process_id, task):
        for job in jobs:
            await due.put(job)


def _coroutines(due: asyncio.Queue[tuple[Any, ...]], ended: list[tuple[Any, ...]], count: int, threads: Any) -> Any:
    loop = asyncio.get_running_loop()

    async def run() -> None:
        while True:
            job = await due.get()
            row = await loop.run_in_executor(threads, _read) if threads else None
            await asyncio.sleep(BENCHMARK_WAIT_S)
            if row is not None:
                await loop.run_in_executor(threads, _write, row)
            ended.append(job)

    return (run() for _ in range(count))


def _read() -> Row:
    return Row.objects.get(pk=1)


def _write(row: Row) -> None:
    Row.objects.create(number=row.number)


async def _finish(ended: list[tuple[Any, ...]], connection: Any, process_id: int) -> None:
    statement = statements.load("finish_many").encode()
    while True:
        await asyncio.sleep(_GATHER_S)
        jobs, ended[:] = ended[:], []
        if jobs:
            ids, fences = [job[0] for job in jobs], [job[0] ^ job[_LEASE] for job in jobs]
            parameters = {"ids": ids, "fences": fences, "process_id": process_id, "keep": False, "ran_s": []}
            parameters |= {"has_results": False, "results": None}
            await asyncio.to_thread(connection.execute, statement, parameters, prepare=False)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
