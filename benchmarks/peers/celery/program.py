"""Runs Celery for the benchmark, on Redis; ``benchmarks.peers`` lists the actions."""

from __future__ import annotations

import json
import os
import random
import sys
import time

from arrivals import due_times, pause_s
from celery import Celery

# What its page on optimizing recommends for many short tasks.
_PREFETCHED = 128

app = Celery("program", broker=os.environ["DATABASE_URL"])
app.conf.update(
    task_ignore_result=True, worker_prefetch_multiplier=_PREFETCHED, broker_connection_retry_on_startup=True
)


@app.task(name="noop")
def noop() -> None:
    """Do nothing."""


@app.task(name="mark")
def mark(added_ns: int) -> None:
    """Note when the job was added and when it started."""
    started_ns = time.monotonic_ns()
    with open(os.environ["BENCHMARK_MARKS"], "a") as marks:
        marks.write(f"{added_ns} {started_ns}\n")


def setup() -> None:
    """Do nothing: Redis has no schema."""


def bulk(count: int) -> None:
    """Add many jobs by one producer; it has no batch form."""
    with app.producer_pool.acquire(block=True) as producer:
        began = time.monotonic()
        for _ in range(count):
            noop.apply_async(producer=producer)
        print(json.dumps({"rate": count / (time.monotonic() - began)}))


def worker(processes: int) -> None:
    """Run jobs in so many processes until SIGTERM."""
    options = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING")
    app.worker_main(["worker", "--pool=prefork", f"--concurrency={processes}", *options])


def latency(count: int) -> None:
    """Add jobs one by one, with pauses."""
    for _ in range(count):
        time.sleep(random.uniform(0.02, 0.06))
        mark.delay(time.monotonic_ns())
    print(json.dumps({"added": count}))


def steady(count: int, batch: int, rate: int, start_ns: int) -> None:
    """Add jobs at a steady rate, one by one or some in a row."""
    with app.producer_pool.acquire(block=True) as producer:
        for due_ns in due_times(count // batch, rate / batch, start_ns):
            time.sleep(pause_s(due_ns))
            added_ns = time.monotonic_ns()
            for _ in range(batch):
                mark.apply_async((added_ns,), producer=producer)
    print(json.dumps({"added": count}))


if __name__ == "__main__":
    action = {"setup": setup, "bulk": bulk, "worker": worker, "latency": latency, "steady": steady}[sys.argv[1]]
    action(*map(int, sys.argv[2:]))
