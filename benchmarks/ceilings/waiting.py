"""Runs the handlers of jobs that wait as coroutines of one bare loop, and their queries on a few bare threads.

They are claimed by our statement and ended by our statement in batches, on a connection each, and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from benchmarks.ceilings.claims import BATCH, claim, connect, register
from benchmarks.ours.waiting.tasks import wait, wait_between_rows
from benchmarks.peers.shared.rows.models import Row
from benchmarks.settings import BENCHMARK_WAIT_S
from salon_jobs.db import statements
from salon_jobs.db.internals import thread_sensitive

_GATHER_S: Final = 0.01
_LEASE: Final = 9
_HANDLERS: Final[dict[str, Callable[[], Awaitable[None]]]] = {
    "async": wait_between_rows.function,
    "idle": wait.function,
}


async def main(kind: str, at_once: int, threads: int) -> None:
    """Work until killed: with handlers that are ``idle``, or that use the ORM's ``async`` or ``sync`` methods."""
    due: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue(BATCH)
    ended: list[tuple[Any, ...]] = []
    executor = ThreadPoolExecutor(threads)
    gc.freeze()
    gc.set_threshold(100 * at_once)  # as our worker does
    handler = _HANDLERS.get(kind) or partial(_between_calls, executor)

    async def run() -> None:
        while True:
            job = await due.get()
            await handler()
            ended.append(job)

    with connect() as claiming, connect() as finishing:
        process_id = register(claiming)
        async with thread_sensitive(executor):
            task = "bench-wait" if kind == "idle" else "bench-wait-rows"
            ways = _claim(due, task, claiming, process_id), _finish(ended, finishing, process_id)
            await asyncio.gather(*ways, *(run() for _ in range(at_once)))


async def _between_calls(executor: ThreadPoolExecutor) -> None:
    """Do as the handler does, without what Django and asgiref do between a loop and a thread."""
    loop = asyncio.get_running_loop()
    row = await loop.run_in_executor(executor, partial(Row.objects.get, pk=1))
    await asyncio.sleep(BENCHMARK_WAIT_S)
    await loop.run_in_executor(executor, partial(Row.objects.create, number=row.number))


async def _claim(due: asyncio.Queue[tuple[Any, ...]], task: str, connection: Any, process_id: int) -> None:
    while jobs := await asyncio.to_thread(claim, connection, process_id, task):
        for job in jobs:
            await due.put(job)


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
