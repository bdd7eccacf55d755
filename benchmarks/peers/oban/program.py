"""Runs oban for the benchmark, on psycopg and uvloop; ``benchmarks.peers`` lists the actions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time

import uvloop
from arrivals import due_times, pause_s
from oban import Oban, worker
from oban.job import Job
from oban.schema import install

_BATCH = 5_000
_LIMIT = 100


@worker(queue="default")
class Noop:
    """Does nothing."""

    async def process(self, _: Job) -> None:
        """Do nothing."""


@worker(queue="default")
class Mark:
    """Notes when the job was added and when it started."""

    async def process(self, job: Job) -> None:
        """Note it."""
        started_ns = time.monotonic_ns()
        with open(os.environ["BENCHMARK_MARKS"], "a") as marks:
            marks.write(f"{job.args['added_ns']} {started_ns}\n")


async def setup() -> None:
    """Install the schema."""
    await install(await _pool())


async def bulk(count: int) -> None:
    """Add many jobs in its batch form."""
    oban = Oban(pool=await _pool())
    began = time.monotonic()
    for start in range(0, count, _BATCH):
        await oban.enqueue_many(Noop.new({}) for _ in range(min(_BATCH, count - start)))
    print(json.dumps({"rate": count / (time.monotonic() - began)}))


async def work() -> None:
    """Run jobs until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Oban(pool=await _pool(), queues={"default": _LIMIT}):
        await stop.wait()


async def latency(count: int) -> None:
    """Add jobs one by one, with pauses."""
    oban = Oban(pool=await _pool())
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.02, 0.06))
        await oban.enqueue(Mark.new({"added_ns": time.monotonic_ns()}))
    print(json.dumps({"added": count}))


async def steady(count: int, batch: int, rate: int, start_ns: int) -> None:
    """Add jobs at a steady rate, one by one or some at once."""
    oban = Oban(pool=await _pool())
    for due_ns in due_times(count // batch, rate / batch, start_ns):
        await asyncio.sleep(pause_s(due_ns))
        added_ns = time.monotonic_ns()
        if batch == 1:
            await oban.enqueue(Mark.new({"added_ns": added_ns}))
        else:
            await oban.enqueue_many(Mark.new({"added_ns": added_ns}) for _ in range(batch))
    print(json.dumps({"added": count}))


async def _pool() -> object:
    return await Oban.create_pool(os.environ["DATABASE_URL"], min_size=4, max_size=25)


if __name__ == "__main__":
    action = {"setup": setup, "bulk": bulk, "worker": work, "latency": latency, "steady": steady}[sys.argv[1]]
    uvloop.run(action(*map(int, sys.argv[2:])))
