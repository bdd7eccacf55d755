"""Operators' verbs, schedules and flows with Django's tasks and their results."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import override_settings

from salon_jobs import flow, get_job, schedule, tenant_context
from salon_jobs.backend import call, wait
from salon_jobs.backend.framework import InvalidTask
from salon_jobs.control import cancel_jobs, change_jobs, discard_jobs, retry_jobs, run_again, run_schedule
from salon_jobs.core.errors import FlowInvalid, JobDoesNotExist, OptionInvalid, PayloadInvalid, TaskInvalid, UnknownTask
from salon_jobs.core.records import ActionResult
from salon_jobs.schedules.due import StoredSchedules
from salon_jobs.testing import drain_jobs
from tests import tasks
from tests.backend import calls
from tests.backend.aliases import TASKS
from tests.backend.django_tasks_api import PACKAGE
from tests.management.operator import run
from tests.support import seen

pytestmark = pytest.mark.usefixtures("database")
add: Any = calls.add
fail: Any = calls.fail
flaky: Any = calls.flaky
keyed: Any = calls.keyed
mail: Any = calls.mail
HOUR = timedelta(hours=1)
IMPOSSIBLE = ["nine", "", "a\0b", "\ud800", 10**30, -1, True, 1.5, b"1", None]


def due_now() -> None:
    """Poll until no schedule is due, when all have been due for the first time."""
    [(at,)] = seen("SELECT max(next_at) FROM salon_jobs_schedule")
    scheduler = StoredSchedules(using="default")
    while not scheduler.poll(at):
        pass


class TestJobs:
    """A job by the result that ``enqueue`` returned, or by its ID."""

    def test_result_and_its_id_name_the_job(self) -> None:
        result = add.enqueue(1)
        [(number,)] = seen("SELECT id FROM salon_jobs_job")
        for name in (result, result.id, UUID(result.id), add.get_result(result.id), number):
            assert get_job(name).id == number
        gone = str(uuid4())
        with transaction.atomic():
            assert change_jobs([result, gone, number], queue="mail") == [
                ActionResult(result.id, True),
                ActionResult(gone, False, "there is no such job, or you may not see it"),
                ActionResult(number, True),
            ]
            assert cancel_jobs(result) == [ActionResult(result.id, True)]
            assert retry_jobs(result.id) == [ActionResult(result.id, True)]
            assert discard_jobs([result]) == [ActionResult(result.id, True)]
            assert run_again(result, {"left": 5}).id > number

    def test_commands_take_public_ids(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = add.enqueue(1)
        call_command("salon_jobs", "show", result.id, "--json")
        assert json.loads(capsys.readouterr().out)["public_id"] == result.id
        call_command("salon_jobs", "cancel", result.id, "--yes", "--json")
        assert json.loads(capsys.readouterr().out) == [{"id": result.id, "changed": True, "detail": ""}]
        with pytest.raises(CommandError, match=f"there is no job {UUID(int=9)}"):
            call_command("salon_jobs", "show", str(UUID(int=9)))

    def test_run_again_keeps_alias_and_options(self) -> None:
        later = get_job(add.enqueue(1)).created_at + HOUR
        sent = mail.using(backend="open", queue_name="bulk", priority=3, run_after=later)
        again = get_job(run_again(sent.enqueue("a@b.example"), {"address": "c@d.example"}))
        result = sent.get_result(str(again.public_id))
        assert (result.args, result.kwargs) == ([], {"address": "c@d.example"})
        assert (result.task.queue_name, result.task.priority, result.task.run_after) == ("bulk", 3, None)
        assert (again.queue, again.priority, again.run_at < later) == ("bulk", -3, True)

    def test_run_again_without_the_alias(self) -> None:
        """It is a call of the declared task, since the settings have the alias no more."""
        earlier = add.using(backend="open").enqueue(1)
        with override_settings(TASKS={"default": TASKS["default"]}):
            again = get_job(run_again(earlier, {"left": 5}))
            assert add.get_result(str(again.public_id)).kwargs == {"left": 5}

    def test_web_finds_its_jobs_by_public_id(self, stores: list[UUID]) -> None:
        with tenant_context(stores[0]):
            result = add.enqueue(1)
        for store, changed in ((stores[1], False), (stores[0], True)):
            with tenant_context(store, using="web", atomic=False):
                assert [each.changed for each in cancel_jobs(result, using="web")] == [changed]

    @pytest.mark.parametrize("wrong", IMPOSSIBLE, ids=ascii)
    @pytest.mark.parametrize("use", [get_job, cancel_jobs, lambda given: run_again(given, {})])
    def test_impossible_name_breaks_no_transaction(self, wrong: Any, use: Any) -> None:
        with transaction.atomic():
            with pytest.raises(OptionInvalid, match="number"):
                use(wrong)
            assert not connections["default"].needs_rollback
            assert seen("SELECT 1") == [(1,)]

    def test_unknown_public_id_does_not_exist(self) -> None:
        gone = str(uuid4())
        for use in (get_job, lambda name: run_again(name, {})):
            with pytest.raises(JobDoesNotExist, match=f"there is no job {gone}"):
                use(gone)

    @override_settings(TASKS={"default": {"BACKEND": f"{PACKAGE}.backends.dummy.DummyBackend"}})
    def test_result_of_other_backend_is_refused(self) -> None:
        result: Any = type("Result", (), {"id": "x" * 32})()
        for use in (get_job, cancel_jobs, lambda given: wait(given, 0)):
            with pytest.raises(OptionInvalid):
                use(result)


class TestSchedules:
    """``schedule`` with ``salon_jobs.backend.call``."""

    def test_ticks_add_jobs_of_the_call(self, stores: list[UUID]) -> None:
        schedule(call(add, 3, right=4), every=HOUR, key="sum")
        schedule(call(mail.using(queue_name="default"), address="a@b.example"), every=HOUR, key="mail", jitter=HOUR)
        with tenant_context(stores[0]):
            schedule(call(keyed, "monday"), every=HOUR, key="own")
        due_now()
        columns = "task, queue, priority, store_id, job_key, run_at > tick"
        assert seen(f"SELECT {columns} FROM salon_jobs_job WHERE tick IS NOT NULL ORDER BY task") == [
            ("tests.backend.calls.add", "default", 0, None, None, False),
            ("tests.backend.calls.keyed", "default", 0, stores[0], "report-monday", False),
            ("tests.backend.calls.mail", "default", -7, None, None, True),
        ]
        [(result_id,)] = seen("SELECT public_id FROM salon_jobs_job WHERE task LIKE '%%add'")
        drain_jobs()
        assert add.get_result(str(result_id)).return_value == 7

    def test_change_keeps_options_of_call(self) -> None:
        weekly = mail.using(backend="open", queue_name="bulk", priority=3, keep_result=HOUR)
        schedule(call(weekly, address="a@b.example"), every=HOUR, key="mail")
        run("schedules", "change", "mail", "--every", "2h")
        run("schedules", "change", "mail", "--arguments", '{"address": "c@d.example"}')
        job = get_job(run_schedule("mail"))
        assert (job.queue, job.priority, job.payload["kwargs"]) == ("bulk", -3, {"address": "c@d.example"})
        assert weekly.get_result(str(job.public_id)).task.keep_result == HOUR

    def test_run_now_adds_job(self) -> None:
        schedule(call(add, 3), every=HOUR, key="sum")
        handle = run_schedule("sum")
        drain_jobs()
        assert handle.refresh().value == 4

    def test_wrong_calls_are_refused(self) -> None:
        with pytest.raises(PayloadInvalid, match="missing a required argument: 'left'"):
            call(add)
        with pytest.raises(InvalidTask, match="run_after is one instant"):
            call(add.using(run_after=get_job(add.enqueue(1)).created_at), 1)
        with pytest.raises(InvalidTask, match="the worker reads timeout"):
            call(flaky.using(timeout=HOUR), 1)
        with pytest.raises(TaskInvalid, match="is not a task"):
            call(print, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("given", [add, 3])
    def test_what_is_no_call_is_refused(self, given: Any) -> None:
        """Such as what ``Task.call`` of Django's returned, which has run the task."""
        with pytest.raises(PayloadInvalid, match=r"runs it at once: write salon_jobs\.backend\.call\(task, …\)"):
            schedule(given, every=HOUR, key="k")
        with flow("f") as stages, pytest.raises(FlowInvalid, match="runs it at once: let a member enqueue it"):
            stages.add(given)
        with pytest.raises(PayloadInvalid, match="runs it at once: let a task of salon_jobs enqueue it"):
            tasks.system.enqueue_many([tasks.system.call()], then=given)

    def test_flows_refuse_calls_of_djangos_tasks(self) -> None:
        with flow("f") as stages, pytest.raises(UnknownTask, match="Flows, then= and consumers take tasks of salon_j"):
            stages.add(call(add, 1))
        with pytest.raises(UnknownTask, match="let one of these enqueue it"):
            tasks.system.enqueue_many([tasks.system.call()], then=call(add, 1))
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
