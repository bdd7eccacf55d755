"""Runs pgqueuer for the benchmark, on asyncpg and uvloop; ``benchmarks.peers`` lists the actions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time

import asyncpg
import uvloop
from arrivals import due_times, pause_s
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

_BATCH = 10_000
_CLAIMED_AT_ONCE = 500


async def setup() -> None:
    """Install the schema."""
    await (await _queries()).install()


async def bulk(count: int) -> None:
    """Add many jobs in its batch form."""
    queries = await _queries()
    began = time.monotonic()
    for start in range(0, count, _BATCH):
        size = min(_BATCH, count - start)
        await queries.enqueue(["noop"] * size, [None] * size, [0] * size)
    print(json.dumps({"rate": count / (time.monotonic() - began)}))


async def worker() -> None:
    """Run jobs until SIGTERM."""
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ["DATABASE_URL"])))

    @queuer.entrypoint("noop")
    async def noop(_: Job) -> None: ...

    @queuer.entrypoint("mark")
    async def mark(job: Job) -> None:
        started_ns = time.monotonic_ns()
        with open(os.environ["BENCHMARK_MARKS"], "a") as marks:
            marks.write(f"{(job.payload or b'').decode()} {started_ns}\n")

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
    await queuer.run(batch_size=_CLAIMED_AT_ONCE)


async def latency(count: int) -> None:
    """Add jobs one by one, with pauses."""
    queries = await _queries()
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.02, 0.06))
        await queries.enqueue("mark", str(time.monotonic_ns()).encode())
    print(json.dumps({"added": count}))


async def steady(count: int, batch: int, rate: int, start_ns: int) -> None:
    """Add jobs at a steady rate, one by one or some at once."""
    queries = await _queries()
    for due_ns in due_times(count // batch, rate / batch, start_ns):
        await asyncio.sleep(pause_s(due_ns))
        added_ns = time.monotonic_ns()
        if batch == 1:
            await queries.enqueue("mark", str(added_ns).encode())
        else:
            await queries.enqueue(["mark"] * batch, [str(added_ns).encode()] * batch, [0] * batch)
    print(json.dumps({"added": count}))


async def _queries() -> Queries:
    return Queries(AsyncpgDriver(await asyncpg.connect(os.environ["DATABASE_URL"])))


if __name__ == "__main__":
    action = {"setup": setup, "bulk": bulk, "worker": worker, "latency": latency, "steady": steady}[sys.argv[1]]
    uvloop.run(action(*map(int, sys.argv[2:])))
