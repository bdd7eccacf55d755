"""Tests that ordered jobs begin in their order, and each after the end of the one before, whatever is killed."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

from salon_jobs import tenant_context
from tests.e2e import tasks
from tests.e2e.worker_process import QUICK, WorkerProcess
from tests.support import elsewhere, seen
from tests.waiting import eventually

CUSTOMERS, JOBS, KILLS = 30, 8, 3


def test_ordered_jobs_survive_kills(stores: list[UUID], tmp_path: Path) -> None:
    log = tmp_path / "ran"

    def add(numbers: range, customers: range) -> None:
        with tenant_context(stores[0]):
            for number in numbers:
                tasks.ordered.enqueue_many(
                    tasks.ordered.call(stores[0], customer, number, str(log)) for customer in customers
                )

    def done() -> int:
        return int(seen("SELECT count(*) FROM customer")[0][0])

    add(range(JOBS // 2), range(CUSTOMERS))
    with (
        ThreadPoolExecutor(2) as pool,
        WorkerProcess("--processes", "2", ready=True, **QUICK) as worker,
        WorkerProcess(ready=True, **QUICK),
    ):
        halves = range(CUSTOMERS // 2), range(CUSTOMERS // 2, CUSTOMERS)
        callers = [elsewhere(pool, partial(add, range(JOBS // 2, JOBS), customers)) for customers in halves]
        killed = 0
        for kill in range(1, KILLS + 1):
            eventually(partial(lambda wanted: done() >= wanted, kill * CUSTOMERS * JOBS // (KILLS + 2)))
            with suppress(ProcessLookupError):
                for child in worker.children()[:1]:  # none while one has yet to be replaced
                    os.kill(child["pid"], signal.SIGKILL)
                    killed += 1
        eventually(done, CUSTOMERS * JOBS)
        assert killed
        assert [caller.result() for caller in callers] == [None, None]
        eventually(lambda: seen("SELECT count(*) FROM salon_jobs_job"), [(0,)])
    assert done() == CUSTOMERS * JOBS, "each ran once"
    assert seen("SELECT count(*) FROM salon_jobs_ordered_key") == [(0,)]
    ran = defaultdict[str, list[tuple[int, str]]](list)
    for line in log.read_text().splitlines():
        customer, of_customer, word = line.split()
        ran[customer].append((int(of_customer), word))
    for lines in ran.values():
        begun = [number for number, word in lines if word == "begin"]
        assert begun == sorted(begun), "a run that was cut short is repeated before the next one begins"
        assert set(begun) == set(range(JOBS))
        for place, (number, word) in enumerate(lines):
            assert word == "end" or number == 0 or (number - 1, "end") in lines[:place], "none overlap"
