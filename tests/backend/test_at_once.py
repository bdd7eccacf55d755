"""Enqueues Django's tasks in tests that expect them to have run when ``enqueue`` returns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import TestCase, override_settings

from salon_jobs.models import Job
from salon_jobs.testing import run_at_once
from tests import tasks
from tests.backend import calls
from tests.backend.aliases import TASKS
from tests.backend.django_tasks_api import task_enqueued, task_finished
from tests.support import connected

AT_ONCE = {**TASKS, "default": {"BACKEND": "salon_jobs.testing.backend.AtOnceBackend"}}
add: Any = calls.add
describe: Any = calls.describe
double: Any = calls.double
fail: Any = calls.fail


@override_settings(TASKS=AT_ONCE)
class AtOnceBackendInTestCase(TestCase):
    """No transaction commits here, so no callback runs."""

    def test_result_is_there_after_enqueue(self) -> None:
        for result in (add.enqueue(2, right=3), async_to_sync(add.aenqueue)(2, right=3)):
            assert (result.status, result.return_value) == ("SUCCESSFUL", 5)
        assert add.get_result(result.id).return_value == 5
        assert double.enqueue(4).return_value == 8
        assert describe.enqueue().return_value["attempt"] == 1

    def test_failure_is_in_the_result(self) -> None:
        """As with Django's own backend, enqueueing raises nothing."""
        with transaction.atomic():
            result = fail.enqueue()
        assert result.status == "FAILED"
        assert [error.exception_class_path for error in result.errors] == ["builtins.ValueError"]

    def test_task_without_result_has_run(self) -> None:
        result = describe.using(keep_result=timedelta(0)).enqueue(note="n")
        assert len(calls.seen) == 1
        assert result.status == "READY", "nothing more is known of it"

    def test_later_tasks_wait(self) -> None:
        result = add.using(run_after=datetime.now(UTC) + timedelta(hours=1)).enqueue(1)
        assert result.status == "READY"
        assert Job.objects.get().state == "queued"

    def test_signals_come_in_order(self) -> None:
        said: list[str] = []
        receivers = [lambda **_: said.append("enqueued"), lambda **_: said.append("finished")]
        with connected(task_enqueued, receivers[0]), connected(task_finished, receivers[1]):
            add.enqueue(1)
        assert said == ["enqueued", "finished"]

    def test_block_of_the_test_decides(self) -> None:
        with run_at_once() as runs:
            add.enqueue(1)
            with pytest.raises(AssertionError, match="ValueError"):
                fail.enqueue()
        assert len(runs) == 1


class RunAtOnceInTestCase(TestCase):
    """The backend of production, and tasks of ours, by the context manager alone."""

    def test_result_is_there_after_enqueue(self) -> None:
        with run_at_once() as runs:
            result = add.enqueue(1)
            tasks.system.enqueue()
        assert (result.status, result.return_value) == ("SUCCESSFUL", 2)
        assert [run.task for run in runs] == ["tests.backend.calls.add", "test-system"]
        assert add.enqueue(1).status == "READY"
