"""Starts Django's tasks by cron, and asserts and performs them by the test helpers."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from django.db import transaction
from django.test import override_settings

from project.salon.models import Customer
from salon_jobs import cron, get_job, tenant_context
from salon_jobs.checks import check_all
from salon_jobs.control import run_again
from salon_jobs.core.errors import CronInvalid, PayloadInvalid, TaskInvalid
from salon_jobs.jobs import registry
from salon_jobs.models import Job
from salon_jobs.schedules.scheduler import Scheduler, run_cron_entry
from salon_jobs.testing import assert_enqueued, drain_jobs, perform_job
from tests.backend import calls
from tests.backend.django_tasks_api import PACKAGE, task
from tests.support import change, seen

TICK = datetime(2026, 5, 5, 18, tzinfo=UTC)
add: Any = calls.add
describe: Any = calls.describe
echo: Any = calls.echo
fail: Any = calls.fail
mail: Any = calls.mail


@task
async def halve(number: int) -> float:
    """Return half the number."""
    return number / 2


@task
def count_customers() -> int:
    """Return how many customers it sees outside of a transaction, times ten, and how many in one."""
    outside = Customer.objects.count()
    with transaction.atomic():
        return 10 * outside + Customer.objects.count()


with override_settings(TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}}):

    @task
    def elsewhere() -> None:
        """Belong to another backend."""


@pytest.mark.usefixtures("database", "own_entries")
class TestCron:
    """Entries of a crontab whose tasks are Django's."""

    def test_tick_starts_task_with_its_options(self) -> None:
        cron("0 18 * * *", add, payload=lambda tick: {"left": tick.hour, "right": 2}, name="sum")
        cron("0 18 * * *", mail, payload={"address": "a@b.example"})
        cron("0 18 * * *", describe, name="with-context")
        assert Scheduler(using="default").run_at(TICK) == 3
        jobs = seen("SELECT task, queue, priority, max_attempts, tick FROM salon_jobs_job ORDER BY id")
        assert jobs == [
            ("tests.backend.calls.add", "default", 0, 1, TICK),
            ("tests.backend.calls.mail", "mail", -7, 1, TICK),
            ("tests.backend.calls.describe", "default", 0, 1, TICK),
        ]
        [(result_id,)] = seen("SELECT public_id FROM salon_jobs_job WHERE task LIKE '%%add'")
        assert len(drain_jobs()) == 3
        assert add.get_result(str(result_id)).return_value == 20

    def test_entry_run_by_hand_is_a_system_job(self, stores: list[UUID]) -> None:
        """Also inside a tenant context."""
        cron("0 18 * * *", add, payload={"left": 1}, name="sum")
        with tenant_context(stores[0]):
            run_cron_entry("sum")
        assert seen("SELECT store_id FROM salon_jobs_job") == [(None,)]

    @override_settings(TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}})
    def test_entry_of_other_backend_is_left_out(self) -> None:
        """With a warning that names it; what is wrong with the entry itself is still an error."""
        target: Any = elsewhere
        cron("0 18 * * *", target, payload={"unknown": 1}, name="nightly")
        assert Scheduler(using="default").run_at(TICK) == 0
        [warning] = [each for each in check_all() if each.id == "salon_jobs.W072"]
        assert "'nightly' (of DummyBackend)" in warning.msg
        with pytest.raises(CronInvalid, match="'nightly' starts nothing here: its task is one of DummyBackend"):
            run_cron_entry("nightly")
        with pytest.raises(CronInvalid, match="two cron entries named 'nightly'"):
            cron("0 19 * * *", target, name="nightly")
        with pytest.raises(CronInvalid, match="minute"):
            cron("99 18 * * *", target)

    @pytest.mark.parametrize(
        ("target", "payload", "message"),
        [
            (add, None, "task 'tests.backend.calls.add': missing a required argument: 'left'"),
            (echo, {"x": {1, 2}}, "argument 'x' cannot be JSON: Unsupported type: <class 'set'>"),
        ],
    )
    def test_misfit_payload_is_refused_when_declared(self, target: Any, payload: Any, message: str) -> None:
        with pytest.raises(CronInvalid, match=re.escape(message)):
            cron("0 18 * * *", target, payload=payload, name="nightly")


@override_settings(TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}})
@pytest.mark.parametrize("use", [assert_enqueued, perform_job])
def test_tasks_of_other_backends_are_refused(use: Callable[[Any], object]) -> None:
    with pytest.raises(TaskInvalid, match=r"is a task of DummyBackend, not of salon_jobs\.backend"):
        use(elsewhere)


@pytest.mark.usefixtures("database")
class TestHelpers:
    """``assert_enqueued`` and ``perform_job``."""

    def test_queued_jobs_are_found_by_argument_names(self) -> None:
        with pytest.raises(
            AssertionError, match=r"0 jobs of 'tests.backend.calls.add' with {} are queued, not at least"
        ):
            assert_enqueued(add)
        assert assert_enqueued(add, count=0) == []
        add.enqueue(1, right=2)
        add.enqueue(left=1, right=3)
        mail.enqueue("a@b.example")
        assert len(assert_enqueued(add, count=2, left=1)) == 2
        assert len(assert_enqueued(add, right=3)) == 1
        assert assert_enqueued(mail, address="a@b.example")
        with pytest.raises(AssertionError, match=r"2 jobs of .* are queued, not 0; .* are \[{'left': 1, 'right': 2"):
            assert_enqueued(add, count=0)
        with pytest.raises(PayloadInvalid, match=r"'tests.backend.calls.add' has no argument 'letf'.*left"):
            assert_enqueued(add, letf=1)
        echo.enqueue("first", name=(1, 2))
        assert assert_enqueued(echo, name=[1, 2], count=1)
        echo.enqueue(3, 4)
        assert assert_enqueued(echo, args=[3, 4], count=1)

    def test_defaults_count_as_given(self) -> None:
        job = get_job(add.enqueue(5)).id
        assert assert_enqueued(add, left=5, right=1) == [job]
        assert assert_enqueued(add, right=2, count=0) == []
        add.enqueue(5, right=2)
        assert assert_enqueued(add, right=1) == [job]

    def test_run_again_takes_arguments_by_name(self) -> None:
        add.enqueue(1, right=2)
        [job] = assert_enqueued(add)
        run_again(job, {"left": 5, "right": 2})
        assert assert_enqueued(add, left=5, right=2, count=1)
        with pytest.raises(PayloadInvalid, match="missing a required argument: 'left'"):
            run_again(job, {"right": 5})

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ((7, "x"), {"note": "n"}),
            ((7, "x", "y", "z"), {}),
            ((7, "x", "y"), {"note": "n"}),
            ((), {"user": 7, "token": "x"}),
        ],
    )
    def test_named_arguments_find_their_positions(self, args: Any, kwargs: Any) -> None:
        """What a page offers to run again calls the function as before."""
        job = Job.objects.get(pk=calls.send_reset.enqueue(*args, **kwargs).job_id)
        named = registry.get_declaration(job.task).payload.named(job.payload)
        again = Job.objects.get(pk=run_again(job, named).id)
        assert calls.send_reset.func(*again.payload["args"], **again.payload["kwargs"]) == calls.send_reset.func(
            *args, **kwargs
        )

    @pytest.mark.parametrize("labels", [{"labels": 5}, {"labels": {"x": 1}, "y": 2}, {}])
    def test_one_of_many_keywords_has_their_name(self, labels: Any) -> None:
        """Run again, the function gets it as before."""
        job = Job.objects.get(pk=calls.label.enqueue(1, **labels).job_id)
        named = registry.get_declaration(job.task).payload.named(job.payload)
        payload = Job.objects.get(pk=run_again(job, named).id).payload
        assert (payload["args"], payload["kwargs"]) == ([1], labels)

    def test_rest_of_arguments_is_a_list(self) -> None:
        job = Job.objects.get(pk=echo.enqueue(1, 2, name="x").job_id)
        handle = run_again(job, {"args": [3], "name": "y"})
        assert Job.objects.get(pk=handle.id).payload["args"] == [3]
        handle = run_again(job, {"args": "text"})
        assert Job.objects.get(pk=handle.id).payload["kwargs"] == {"args": "text"}

    def test_arguments_leave_out_the_context(self) -> None:
        """What a page offers to run again is what the task takes."""
        describe.enqueue(note="x")
        job = Job.objects.get(pk__in=assert_enqueued(describe, note="x"))
        named = registry.get_declaration(job.task).payload.named(job.payload)
        assert named == {"note": "x"}
        assert run_again(job, named).id != job.pk
        with pytest.raises(PayloadInvalid, match="has no argument 'context'"):
            assert_enqueued(describe, context=None)

    def test_perform_job_calls_as_worker(self) -> None:
        assert perform_job(add, 1, right=2) == 3
        assert perform_job(cast("Any", halve), 5) == 2.5
        performed = perform_job(describe, note="x")
        assert performed["attempt"] == 1
        assert str(UUID(performed["id"])) == performed["id"]
        assert perform_job(echo, (1, 2), k=(3,)) == [[[1, 2]], {"k": [3]}], "as JSON brings them"
        with pytest.raises(ValueError, match=r"^no$"):
            perform_job(fail)
        with pytest.raises(PayloadInvalid, match="missing a required argument: 'left'"):
            perform_job(add)
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]

    def test_perform_job_runs_in_open_context(self, stores: list[UUID]) -> None:
        for store in stores[:2]:
            change("INSERT INTO customer (id, store_id, name, email) VALUES (%s, %s, 'x', '')", uuid4(), store)
        task: Any = count_customers
        assert perform_job(task) == 0
        with tenant_context(stores[0], atomic=False):
            assert perform_job(task) == 1
