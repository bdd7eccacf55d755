"""Uses salon_jobs.testing as a host project would: inside Django's TestCase, with no worker."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from django.db import DataError, IntegrityError, connections
from django.db.transaction import TransactionManagementError
from django.test import TestCase
from django.utils.translation import get_language, override

from project.salon.models import Store
from salon_jobs import Discard, Snooze, current_store_id, tenant_context
from salon_jobs.core.errors import NoCurrentJob, PayloadInvalid
from salon_jobs.core.outcomes import Cancelled, Errored, Snoozed, Split, Succeeded
from salon_jobs.jobs.current import current_job
from salon_jobs.jobs.options import ErrorRules
from salon_jobs.models import Job, JobError, Process
from salon_jobs.testing import assert_enqueued, drain_jobs, perform_job
from tests import tasks
from tests.support import new_store_id


class DrainInTestCase(TestCase):
    """Everything happens on the test's own connection and is rolled back with it."""

    store_id: UUID

    def setUp(self) -> None:
        self.store_id = new_store_id()
        with tenant_context(self.store_id):
            Store.objects.create(id=self.store_id, name="Salon of the test")
        self.addCleanup(tasks.hooks.reset)

    def test_drain_runs_due_and_enqueued(self) -> None:
        seen: list[object] = []
        tasks.hooks.system = lambda **_: tasks.in_store.enqueue(store_id=self.store_id, number=5)
        tasks.hooks.store = lambda store_id, number: seen.append((store_id, number, Store.objects.get().pk))
        tasks.system.enqueue()
        drained = drain_jobs()
        assert [(run.task, type(run.outcome)) for run in drained] == [
            ("test-system", Succeeded),
            ("test-store", Succeeded),
        ]
        assert seen == [(self.store_id, 5, self.store_id)]
        assert not Job.objects.exists()
        assert not Process.objects.exists()
        assert current_store_id() is None
        assert not Store.objects.exists(), "no store is left on the connection"

    def test_jobs_run_outside_the_caller_context(self) -> None:
        """A system job sees no store, and another store's job sees its own; afterwards the caller's is set again."""
        other, seen = new_store_id(), list[object]()

        def look(**_: object) -> None:
            seen.append((current_store_id(), [store.pk for store in Store.objects.all()], get_language()))

        tasks.hooks.system = tasks.hooks.store = look
        with tenant_context(other):
            Store.objects.create(id=other, name="Another salon")
            tasks.in_store.enqueue(store_id=other)
        with tenant_context(self.store_id), override("de"):
            tasks.system.enqueue()
            drain_jobs()
            look()
        assert seen == [(other, [other], "en"), (None, [], "en"), (self.store_id, [self.store_id], "de")]

    def test_error_is_outcome_and_retry_waits(self) -> None:
        def fail(**_: object) -> None:
            Store.objects.update(name="changed")
            raise RuntimeError("boom")

        tasks.hooks.store = fail
        tasks.in_store.enqueue(store_id=self.store_id)
        [run] = drain_jobs(raise_errors=False)
        assert isinstance(run.outcome, Errored)
        assert JobError.objects.get().message == "boom"
        assert drain_jobs() == [], "the retry is due later"
        later = datetime.now(UTC) + timedelta(minutes=1)
        assert len(drain_jobs(now=later, raise_errors=False)) == 2, "the second and the last attempt"
        assert Job.objects.get().state == "failed"
        with tenant_context(self.store_id):
            assert Store.objects.get().name == "Salon of the test", "the savepoint was rolled back"

    def test_error_of_the_database_breaks_no_test(self) -> None:
        """Whether Django notices it, as in ``save``, or only the server."""

        def save(**_: object) -> None:
            Process.objects.get().save(force_insert=True)  # that of the drain

        def divide(**_: object) -> None:
            connections["default"].cursor().execute("SELECT 1 / 0")

        for fail, error in ((save, IntegrityError), (divide, DataError)):
            tasks.hooks.system = fail
            tasks.system.using(max_attempts=1).enqueue()
            [run] = drain_jobs(raise_errors=False)
            assert isinstance(run.outcome, Errored)
            assert isinstance(run.outcome.error, error)
        assert [job.state for job in Job.objects.all()] == ["failed"] * 2
        tasks.system.enqueue()
        with pytest.raises(AssertionError, match="DataError: division by zero"):
            drain_jobs()

    def test_caught_error_of_the_database_is_told(self) -> None:
        """The worker keeps what the handler wrote before it; here it would be lost."""

        def catch(**_: object) -> None:
            with suppress(IntegrityError):
                Process.objects.get().save(force_insert=True)  # that of the drain

        tasks.hooks.system = catch
        tasks.system.enqueue()
        with pytest.raises(TransactionManagementError):
            drain_jobs()

    def test_chunks_are_split_after_error(self) -> None:
        calls: list[list[int]] = []

        def fail(sales: list[tasks.Sale], **_: object) -> None:
            calls.append([sale.number for sale in sales])
            if 1 in calls[-1]:
                raise LookupError("boom")

        tasks.hooks.store = fail
        tasks.in_chunks.enqueue_many(tasks.in_chunks.call(self.store_id, tasks.Sale(n)) for n in (0, 2, 3, 4, 5, 6))
        assert [type(run.outcome) for run in drain_jobs()] == [Succeeded] * 6
        assert calls == [[0, 2, 3, 4, 5], [6]]
        tasks.in_chunks.enqueue_many(tasks.in_chunks.call(self.store_id, tasks.Sale(n)) for n in (0, 1))
        outcomes = [type(run.outcome) for run in drain_jobs(raise_errors=False)]
        assert outcomes == [Split, Split, Succeeded, Errored]
        assert calls[2:] == [[0, 1], [0], [1]]
        perform_job(tasks.in_chunks, self.store_id, tasks.Sale(7))
        assert calls[-1] == [7]
        tasks.in_chunks.enqueue_many(tasks.in_chunks.call(self.store_id, tasks.Sale(n)) for n in (0, 1))
        with pytest.raises(AssertionError, match=r"2 jobs of task 'test-chunk' failed: builtins\.LookupError: boom"):
            drain_jobs()

    def test_failing_task_fails_test(self) -> None:
        error = LookupError("boom")
        tasks.hooks.store = tasks.raises(error)
        handle = tasks.in_store.enqueue(store_id=self.store_id)
        tasks.system.enqueue()
        with pytest.raises(AssertionError) as caught:
            drain_jobs()
        assert caught.value.__cause__ is error
        assert f"job {handle.id} of task 'test-store' failed: builtins.LookupError: boom" in str(caught.value)
        assert not Process.objects.exists()
        assert [run.task for run in drain_jobs()] == ["test-system"], "the drain ended at the failure"

    def test_discard_and_snooze_are_no_failures(self) -> None:
        tasks.hooks.store, tasks.hooks.system = tasks.raises(Discard("over")), tasks.raises(Snooze(timedelta(hours=1)))
        tasks.in_store.enqueue(store_id=self.store_id)
        tasks.system.enqueue()
        assert [type(run.outcome) for run in drain_jobs()] == [Cancelled, Snoozed]

    def test_discard_and_snooze_in_chunk_are_no_failures(self) -> None:
        """Nor are errors that the task discards: a job alone raises them without failing."""
        self.enterContext(mock.patch.object(tasks.in_chunks, "errors", ErrorRules(discard_on=(LookupError,))))
        for error, ended in (
            (Discard("over"), Cancelled),
            (Snooze(timedelta(hours=1)), Snoozed),
            (KeyError(), Cancelled),
        ):
            tasks.hooks.store = tasks.raises(error)
            tasks.in_chunks.enqueue_many(tasks.in_chunks.call(self.store_id, tasks.Sale(n)) for n in (0, 1))
            assert [type(run.outcome) for run in drain_jobs()] == [Split, Split, ended, ended]

    def test_drain_without_transaction(self) -> None:
        names: list[str] = []
        tasks.hooks.store = lambda **_: names.append(Store.objects.get().name)
        tasks.outside.enqueue(store_id=self.store_id)
        [run] = drain_jobs()
        assert isinstance(run.outcome, Succeeded)
        assert names == ["Salon of the test"]

    def test_coroutines_run_on_the_tests_connection(self) -> None:
        found: list[object] = []

        async def handler(**_: object) -> None:
            found.append((await Store.objects.aget()).pk)

        tasks.hooks.coroutine = handler
        tasks.async_store.enqueue(store_id=self.store_id)
        assert [type(run.outcome) for run in drain_jobs()] == [Succeeded]
        assert perform_job(tasks.async_store, store_id=self.store_id, number=7) == 7
        assert found == [self.store_id] * 2
        with pytest.raises(Store.DoesNotExist):
            perform_job(tasks.async_store, store_id=new_store_id())
        assert current_store_id() is None
        assert not Store.objects.exists(), "no store is left on the connection"

    def test_endless_jobs_are_reported(self) -> None:
        tasks.hooks.system = lambda **_: tasks.system.enqueue()
        tasks.system.enqueue()
        with pytest.raises(AssertionError, match="10 jobs ran and still more are due"):
            drain_jobs(limit=10)
        assert Job.objects.get().state == "queued"

    def test_perform_job_converts_and_raises(self) -> None:
        seen: list[object] = []
        tasks.hooks.store = lambda store_id, number: seen.append((store_id, number, current_store_id()))
        perform_job(tasks.in_store, store_id=self.store_id, number=3)
        assert seen == [(self.store_id, 3, self.store_id)]
        with pytest.raises(PayloadInvalid):
            perform_job(tasks.in_store, store_id=self.store_id, number="x")  # type: ignore[call-overload]
        tasks.hooks.store = lambda **_: current_job()
        with pytest.raises(NoCurrentJob):
            perform_job(tasks.in_store, store_id=self.store_id)

    def test_perform_job_leaves_store_out(self) -> None:
        """A system task sees no store, as in a worker; the test's language stays, and its store is set again."""
        seen: list[object] = []
        tasks.hooks.system = lambda **_: seen.append((current_store_id(), Store.objects.count(), get_language()))
        with tenant_context(self.store_id), override("de"):
            perform_job(tasks.system)
            assert (current_store_id(), Store.objects.count()) == (self.store_id, 1)
        assert seen == [(None, 0, "de")]

    def test_assert_enqueued_matches_arguments(self) -> None:
        handle = tasks.in_store.enqueue(store_id=self.store_id, number=5)
        assert assert_enqueued(tasks.in_store, store_id=self.store_id, number=5) == [handle.id]
        assert_enqueued(tasks.system, count=0)
        with pytest.raises(AssertionError, match=r"0 jobs of 'test-store'.*queued are.*'number': 5"):
            assert_enqueued(tasks.in_store, number=6)
        with pytest.raises(AssertionError, match=r"1 jobs .* are queued, not 2"):
            assert_enqueued(tasks.in_store, count=2)

    def test_assert_enqueued_compares_converted_values(self) -> None:
        at = datetime(2026, 5, 6, 3, tzinfo=ZoneInfo("Asia/Tokyo"))
        handle = tasks.typed.enqueue(day=date(2026, 5, 5), at=at, amount=Decimal("1.50"), tags=["a"])
        wanted: dict[str, Any] = {"at": at.astimezone(UTC), "day": date(2026, 5, 5), "amount": Decimal("1.50")}
        assert assert_enqueued(tasks.typed, **wanted, tags=["a"], ref=None) == [handle.id]
        with pytest.raises(AssertionError):
            assert_enqueued(tasks.typed, ref=uuid4())
        with pytest.raises(PayloadInvalid, match="no argument 'colour'"):
            assert_enqueued(tasks.typed, colour=None)


def test_testcases_keep_no_rows(database: None) -> None:
    with connections["owner"].cursor() as cursor:
        cursor.execute("SELECT (SELECT count(*) FROM salon_jobs_job) + (SELECT count(*) FROM store)")
        assert cursor.fetchone() == (0,)
