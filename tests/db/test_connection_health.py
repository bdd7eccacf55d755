"""When a runner's thread asks whether its connection still lives: after idling, as Django's own setting says."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections, transaction

from salon_jobs import current_job
from salon_jobs.core.records import ClaimedJob
from salon_jobs.worker import runner as runner_module
from salon_jobs.worker.buffer import JobBuffer
from tests import tasks
from tests.e2e.severing_proxy import SeveringProxy
from tests.settings import url_for
from tests.support import claim, running_on_a_thread, seen


@pytest.mark.parametrize(
    ("declared", "checks", "idle"),
    [
        (tasks.system, True, True),
        (tasks.in_store, True, True),
        (tasks.system, False, True),
        (tasks.system, True, False),
    ],
    ids=["asked", "asked before a transaction", "switched off", "not idle"],
)
def test_cut_connection_is_replaced_before_job(
    stores: list[Any],
    hooks: tasks.Hooks,
    process_id: int,
    monkeypatch: pytest.MonkeyPatch,
    declared: Any,
    checks: bool,
    idle: bool,
) -> None:
    def look(**_: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    hooks.system = hooks.store = look
    arguments = {} if declared is tasks.system else {"store_id": stores[0]}
    monkeypatch.setattr(runner_module, "TIDY_AFTER_S", 0.0 if idle else 3600.0)
    with SeveringProxy(url_for("worker_runtime")) as proxy:
        default = connections.settings["default"]
        monkeypatch.setitem(default, "HOST", "127.0.0.1")
        monkeypatch.setitem(default, "PORT", urlsplit(proxy.url).port)
        monkeypatch.setitem(default, "CONN_HEALTH_CHECKS", checks)
        with running_on_a_thread(process_id, []) as runner:
            for number in range(2):
                if number == 1:
                    proxy.arm(b"SELECT 1")
                declared.enqueue(**arguments)
                runner.end_all(claim(process_id))
        assert proxy.severed.is_set()
    failed = seen("SELECT error_class FROM salon_jobs_job_error")
    assert failed == ([] if checks and idle else [("django.db.utils.OperationalError",)])


def test_job_has_connection_that_replaced_one_in_transaction(
    database: None, hooks: tasks.Hooks, process_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "TIDY_AFTER_S", 0.0)
    same: list[bool] = []
    hooks.system = lambda **_: same.append(current_job().run.connection is connections["default"])
    take = JobBuffer.take

    def take_and_leave_open(buffer: JobBuffer, thread: int) -> ClaimedJob | None:
        job = take(buffer, thread)
        if job is not None:
            transaction.atomic().__enter__()
        return job

    monkeypatch.setattr(JobBuffer, "take", take_and_leave_open)
    with running_on_a_thread(process_id, []) as runner:
        for _ in range(3):
            tasks.system.enqueue()
            runner.end_all(claim(process_id))
    assert same == [True, True, True]
