"""Runs dramatiq for the benchmark, on Redis; ``benchmarks.peers`` lists the actions."""

from __future__ import annotations

import json
import os
import random
import sys
import time

# It polls Redis, by default as rarely as once a second when there is nothing.
os.environ["dramatiq_worker_timeout"] = "10"  # noqa: SIM112
os.environ["dramatiq_queue_prefetch"] = "128"  # noqa: SIM112

import dramatiq
from arrivals import due_times, pause_s
from dramatiq import cli
from dramatiq.brokers.redis import RedisBroker

_THREADS = 8

dramatiq.set_broker(RedisBroker(url=os.environ["DATABASE_URL"]))


@dramatiq.actor(actor_name="noop")
def noop() -> None:
    """Do nothing."""


@dramatiq.actor(actor_name="mark")
def mark(added_ns: int) -> None:
    """Note when the job was added and when it started."""
    started_ns = time.monotonic_ns()
    with open(os.environ["BENCHMARK_MARKS"], "a") as marks:
        marks.write(f"{added_ns} {started_ns}\n")


def setup() -> None:
    """Do nothing: Redis has no schema."""


def bulk(count: int) -> None:
    """Add many jobs one by one; its groups do the same."""
    began = time.monotonic()
    for _ in range(count):
        noop.send()
    print(json.dumps({"rate": count / (time.monotonic() - began)}))


def worker(processes: int) -> None:
    """Run jobs in so many processes until SIGTERM."""
    arguments = ["program", "--processes", str(processes), "--threads", str(_THREADS)]
    sys.exit(cli.main(cli.make_argument_parser().parse_args(arguments)))


def latency(count: int) -> None:
    """Add jobs one by one, with pauses."""
    for _ in range(count):
        time.sleep(random.uniform(0.02, 0.06))
        mark.send(time.monotonic_ns())
    print(json.dumps({"added": count}))


def steady(count: int, batch: int, rate: int, start_ns: int) -> None:
    """Add jobs at a steady rate, one by one or some in a row."""
    for due_ns in due_times(count // batch, rate / batch, start_ns):
        time.sleep(pause_s(due_ns))
        added_ns = time.monotonic_ns()
        for _ in range(batch):
            mark.send(added_ns)
    print(json.dumps({"added": count}))


if __name__ == "__main__":
    action = {"setup": setup, "bulk": bulk, "worker": worker, "latency": latency, "steady": steady}[sys.argv[1]]
    action(*map(int, sys.argv[2:]))
