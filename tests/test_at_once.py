"""Tests that expect jobs to have run when the enqueue returns, inside Django's TestCase and outside."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction
from django.test import TestCase
from django.utils import translation

from project.salon.models import Store
from salon_jobs import Discard, current_store_id, enqueue_job, fan_out, flow, schedule, tenant_context
from salon_jobs.control import run_again, run_cron_entry, run_schedule
from salon_jobs.core.outcomes import Cancelled, Errored, Succeeded
from salon_jobs.jobs import enqueue
from salon_jobs.models import Job, Process
from salon_jobs.schedules.entries import CronEntry, cron, cron_entries
from salon_jobs.testing import drain_jobs, perform_job, run_at_once
from tests import tasks
from tests.support import new_store_id


class AtOnceInTestCase(TestCase):
    """No transaction commits here, so no callback runs."""

    store_id: UUID
    other_id: UUID

    def setUp(self) -> None:
        self.store_id, self.other_id = new_store_id(), new_store_id()
        for store_id in (self.store_id, self.other_id):
            with tenant_context(store_id):
                Store.objects.create(id=store_id, name="Salon of the test")
        self.addCleanup(tasks.hooks.reset)
        self.ran: list[Any] = []
        self.runs = self.enterContext(run_at_once())

    def note(self, **arguments: Any) -> None:
        self.ran.append((arguments.get("note") or arguments.get("number"), current_store_id()))

    def test_every_door_runs_jobs(self) -> None:
        tasks.hooks.system = tasks.hooks.store = self.note
        tasks.system.enqueue(note="one")
        assert self.ran == [("one", None)]
        tasks.system.using(priority=3).enqueue(note="with options")
        enqueue_job("test-system", {"note": "by name"})
        tasks.system.enqueue_many(tasks.system.call(note=f"many {n}") for n in range(2))
        assert [note for note, _ in self.ran[1:]] == ["with options", "by name", "many 0", "many 1"]
        with flow("pair") as pair:
            first = pair.add(tasks.system.call(note="first"))
            pair.add(tasks.system.call(note="second"), after=first)
            assert len(self.ran) == 5
        assert [note for note, _ in self.ran[5:]] == ["first", "second"]
        schedule(tasks.system.call(note="by hand"), every=timedelta(days=1), key="k")
        run_schedule("k")
        assert self.ran[7:] == [("by hand", None)]
        before = cron_entries.all()
        cron("0 3 * * *", tasks.system, payload={"note": "cron"}, name="at-once")
        self.addCleanup(restore, before)
        run_cron_entry("at-once")
        assert self.ran[8:] == [("cron", None)]
        later = tasks.system.using(run_in=timedelta(hours=1)).enqueue(note="later")
        run_again(later.id, {"note": "again"})
        assert self.ran[9:] == [("again", None)]
        assert {type(run.outcome) for run in self.runs} == {Succeeded}
        assert len(self.runs) == 10
        assert Job.objects.get().pk == later.id
        assert not Process.objects.exists()

    def test_jobs_run_outside_the_caller_context(self) -> None:
        """Whatever store the caller is in, and language; afterwards it is there again."""

        def look(**arguments: Any) -> None:
            self.note(**arguments)
            self.ran.append([store.pk for store in Store.objects.all()])
            self.ran.append(translation.get_language())

        tasks.hooks.system = tasks.hooks.store = look
        with tenant_context(self.store_id), translation.override("de"):
            tasks.in_store.enqueue(store_id=self.store_id, number=1)
            tasks.system.enqueue(note="none")
            assert current_store_id() == self.store_id
            assert [store.pk for store in Store.objects.all()] == [self.store_id]
            assert translation.get_language() == "de"
        assert self.ran == [(1, self.store_id), [self.store_id], "en", ("none", None), [], "en"]
        self.ran.clear()
        with tenant_context(self.store_id), tenant_context(self.other_id, switch=True):
            tasks.in_store.enqueue(store_id=self.other_id, number=2)
            assert Store.objects.get().pk == self.other_id
        assert self.ran[0] == (2, self.other_id)
        assert not Store.objects.exists(), "no store is left on the connection"

    def test_jobs_of_jobs_run_after_them(self) -> None:
        def enqueue_another(note: str) -> None:
            if note == "outer":
                tasks.system.enqueue(note="inner")
            self.note(note=note)

        tasks.hooks.system = enqueue_another
        tasks.system.enqueue(note="outer")
        assert [note for note, _ in self.ran] == ["outer", "inner"]
        self.ran.clear()
        perform_job(tasks.system, note="outer")
        assert [note for note, _ in self.ran] == ["inner", "outer"], "that handler is no job"

    def test_later_jobs_wait(self) -> None:
        tasks.hooks.system = self.note
        tasks.system.using(run_in=timedelta(hours=1)).enqueue(note="later")
        assert self.ran == []
        assert Job.objects.get().state == "queued"

    def test_failure_reaches_the_caller(self) -> None:
        error = LookupError("boom")
        tasks.hooks.system = tasks.raises(error)
        with tenant_context(self.store_id):
            with pytest.raises(AssertionError, match="LookupError: boom") as caught:
                tasks.system.enqueue()
            assert Store.objects.get().pk == self.store_id
        assert caught.value.__cause__ is error
        with run_at_once(raise_errors=False) as runs:
            tasks.system.enqueue()
        assert [type(run.outcome) for run in runs] == [Errored]

    def test_rollback_undoes_what_jobs_did(self) -> None:
        def rename(**_: object) -> None:
            Store.objects.update(name="changed")

        tasks.hooks.store = rename
        with transaction.atomic():
            tasks.in_store.enqueue(store_id=self.store_id)
            transaction.set_rollback(True)
        assert len(self.runs) == 1
        with tenant_context(self.store_id):
            assert Store.objects.get().name == "Salon of the test"


def test_block_ends_with_its_error() -> None:
    with pytest.raises(LookupError), run_at_once():
        raise LookupError
    assert enqueue.at_once == []


@run_at_once()
def test_jobs_run_without_a_transaction(database: None, hooks: tasks.Hooks, stores: list[UUID]) -> None:
    """As in a TransactionTestCase, with each kind of context."""
    [store_id, *_] = stores
    ran: list[Any] = []
    hooks.system = lambda note: ran.append((note, current_store_id()))
    hooks.store = lambda store_id, number: ran.append((number, current_store_id()))
    tasks.system.enqueue(note="a")
    with tenant_context(store_id, atomic=False):
        tasks.in_store.enqueue(store_id=store_id, number=1)
        tasks.system.enqueue(note="b")
    with tenant_context(store_id, atomic=False, scope="session"):
        tasks.in_store.enqueue(store_id=store_id, number=2)
        with transaction.atomic():
            tasks.system.enqueue(note="c")
            assert shown_store() == str(store_id)
        assert shown_store() == str(store_id)
    assert shown_store() == ""
    assert ran == [("a", None), (1, store_id), ("b", None), (2, store_id), ("c", None)]


@run_at_once()
def test_fan_out_runs_jobs(database: None, hooks: tasks.Hooks, stores: list[UUID]) -> None:
    ran: list[UUID] = []
    hooks.store = lambda store_id, number: ran.append(store_id)
    result = fan_out(tasks.in_store)
    assert sorted(map(str, ran)) == sorted(map(str, stores))
    assert result.inserted == len(ran)


@run_at_once()
def test_explicit_drain_is_one_drain(database: None, hooks: tasks.Hooks) -> None:
    """Jobs that a job of it enqueues do not run inside that job."""
    ran: list[str] = []

    def enqueue_another(note: str) -> None:
        if note == "outer":
            tasks.system.enqueue(note="inner")
        ran.append(note)

    hooks.system = enqueue_another
    with run_at_once(raise_errors=False):
        job = tasks.system.using(run_in=timedelta(hours=1)).enqueue(note="outer")
    assert drain_jobs() == []
    [due] = Job.objects.filter(pk=job.id).values_list("run_at", flat=True)
    assert [run.task for run in drain_jobs(now=due)] == ["test-system"] * 2
    assert ran == ["outer", "inner"]


def test_discarded_job_is_no_failure(database: None, hooks: tasks.Hooks) -> None:
    hooks.system = tasks.raises(Discard("over"))
    with run_at_once() as runs:
        tasks.system.enqueue(note="n")
    assert [type(run.outcome) for run in runs] == [Cancelled]


def restore(entries: Iterable[CronEntry]) -> None:
    cron_entries.clear()
    for entry in entries:
        cron_entries.add(entry)


def shown_store() -> str:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('app.current_store_id', true), '')")
        [value] = cursor.fetchone()
    return str(value)
