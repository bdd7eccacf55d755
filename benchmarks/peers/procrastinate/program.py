"""Runs procrastinate for the benchmark, on psycopg and uvloop; ``benchmarks.peers`` lists the actions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time

import procrastinate
import uvloop
from arrivals import due_times, pause_s

_BATCH = 10_000
_CONCURRENCY = 24

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["DATABASE_URL"], min_size=4, max_size=25)
)


@app.task(name="noop")
async def noop() -> None:
    """Do nothing."""


@app.task(name="mark")
async def mark(added_ns: int) -> None:
    """Note when the job was added and when it started."""
    started_ns = time.monotonic_ns()
    with open(os.environ["BENCHMARK_MARKS"], "a") as marks:
        marks.write(f"{added_ns} {started_ns}\n")


async def setup() -> None:
    """Install the schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def bulk(count: int) -> None:
    """Add many jobs in its batch form."""
    async with app.open_async():
        began = time.monotonic()
        for start in range(0, count, _BATCH):
            await noop.batch_defer_async(*({} for _ in range(min(_BATCH, count - start))))
        print(json.dumps({"rate": count / (time.monotonic() - began)}))


async def worker() -> None:
    """Run jobs until SIGTERM."""
    async with app.open_async():
        await app.run_worker_async(concurrency=_CONCURRENCY)


async def latency(count: int) -> None:
    """Add jobs one by one, with pauses."""
    async with app.open_async():
        for _ in range(count):
            await asyncio.sleep(random.uniform(0.02, 0.06))
            await mark.defer_async(added_ns=time.monotonic_ns())
        print(json.dumps({"added": count}))


async def steady(count: int, batch: int, rate: int, start_ns: int) -> None:
    """Add jobs at a steady rate, one by one or some at once."""
    async with app.open_async():
        for due_ns in due_times(count // batch, rate / batch, start_ns):
            await asyncio.sleep(pause_s(due_ns))
            added_ns = time.monotonic_ns()
            if batch == 1:
                await mark.defer_async(added_ns=added_ns)
            else:
                await mark.batch_defer_async(*({"added_ns": added_ns} for _ in range(batch)))
        print(json.dumps({"added": count}))


if __name__ == "__main__":
    action = {"setup": setup, "bulk": bulk, "worker": worker, "latency": latency, "steady": steady}[sys.argv[1]]
    uvloop.run(action(*map(int, sys.argv[2:])))
