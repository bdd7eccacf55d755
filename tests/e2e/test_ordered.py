"""Tests that ordered jobs begin in their order, and each after the end of the one before, whatever is killed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

from salon_jobs import tenant_context
from tests.e2e import tasks
from tests.e2e.test_supervisor import QUICK, URL
from tests.e2e.worker_process import WorkerProcess
from tests.support import elsewhere, seen
from tests.waiting import eventually

CUSTOMERS, JOBS, KILLS = 40, 8, 4


def test_jobs_of_a_customer_run_in_their_order_while_processes_are_killed(stores: list[UUID], tmp_path: Path) -> None:
    log = tmp_path / "ran"

    def add(numbers: range, customers: range) -> None:
        with tenant_context(stores[0]):
            for number in numbers:
                tasks.ordered.enqueue_many(
                    tasks.ordered.call(stores[0], customer, number, str(log)) for customer in customers
                )

    def done(number: int) -> bool:
        return int(seen("SELECT count(*) FROM customer")[0][0]) >= number

    add(range(JOBS // 2), range(CUSTOMERS))
    killed = 0
    with (
        ThreadPoolExecutor(2) as pool,
        WorkerProcess("--processes", "2", url=URL, ready=True, **QUICK) as worker,
        WorkerProcess(url=URL, ready=True, **QUICK),
    ):
        rest = range(JOBS // 2, JOBS)
        callers = [
            elsewhere(pool, partial(add, rest, customers))
            for customers in (range(CUSTOMERS // 2), range(CUSTOMERS // 2, CUSTOMERS))
        ]
        for kill in range(1, KILLS + 1):
            eventually(partial(done, kill * CUSTOMERS * JOBS // (KILLS + 2)))
            with suppress(ProcessLookupError):
                for child in worker.ask("/readyz")[1].get("children", [])[:1]:
                    os.kill(child["pid"], signal.SIGKILL)
                    killed += 1
        eventually(lambda: done(CUSTOMERS * JOBS))
        assert [caller.result() for caller in callers] == [None, None]
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
    assert killed
    assert seen("SELECT count(*) FROM customer") == [(CUSTOMERS * JOBS,)], "each ran once"
    assert seen("SELECT count(*) FROM salon_jobs_ordered_key") == [(0,)]
    ran: dict[str, list[tuple[int, str]]] = {}
    for line in log.read_text().splitlines():
        customer, of_customer, word = line.split()
        ran.setdefault(customer, []).append((int(of_customer), word))
    for lines in ran.values():
        begun = [number for number, word in lines if word == "begin"]
        assert begun == sorted(begun), "a run that was cut short is repeated before the next one begins"
        assert set(begun) == set(range(JOBS))
        for place, (number, word) in enumerate(lines):
            assert word == "end" or number == 0 or (number - 1, "end") in lines[:place], "none overlap"
