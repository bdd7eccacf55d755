"""Tests of EAGER: jobs that run in the process that enqueues them, after the commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.db import transaction

from salon_jobs import checks, current_job, tenant_context
from salon_jobs.apps import _install_eager
from salon_jobs.checks import check_settings
from salon_jobs.jobs.enqueue import wake_ups
from salon_jobs.models import Job, Process
from salon_jobs.tenancy.active import current_store_id
from tests import tasks
from tests.conftest import manage
from tests.tasks import Hooks


@pytest.fixture
def eager(settings: Any) -> Iterator[None]:
    settings.DEBUG = True
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ROLES": None, "EAGER": True}
    _install_eager()
    yield
    wake_ups.on_commit = None


def test_eager_jobs_run_after_commit(eager: None, process_id: int, hooks: Hooks) -> None:
    ran: list[tuple[str, bool]] = []
    hooks.system = lambda note="": ran.append((note, threading.current_thread() is threading.main_thread()))
    tasks.system.enqueue(note="alone")
    assert ran == [("alone", False)]
    with transaction.atomic():
        tasks.system.enqueue(note="first")
        tasks.keyed_system.enqueue(note="second")
        assert len(ran) == 1
    assert ran[1:] == [("first", False), ("second", False)]
    with transaction.atomic():
        tasks.system.enqueue(note="never")
        transaction.set_rollback(True)
    assert len(ran) == 3
    assert not Job.objects.exists()
    assert list(Process.objects.values_list("pk", flat=True)) == [process_id]


def test_eager_jobs_have_their_own_store(eager: None, process_id: int, hooks: Hooks, stores: list[UUID]) -> None:
    seen: list[Any] = []

    def in_store(store_id: UUID, **_: object) -> None:
        seen.append((store_id, current_store_id(), current_job().store_id))

    def in_none(note: str = "") -> None:
        seen.append(current_store_id())
        tasks.in_store.enqueue(store_id=stores[1])

    hooks.store, hooks.system = in_store, in_none
    with tenant_context(stores[0]):
        tasks.in_store.enqueue(store_id=stores[0])
    tasks.system.enqueue()
    first, second = stores[:2]
    assert seen == [(first, first, first), None, (second, second, second)]


def test_eager_failure_waits_for_retry(
    eager: None, process_id: int, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    hooks.system = tasks.raises(ValueError("no such card"))
    handle = tasks.system.enqueue()
    assert "job_retried" in caplog.text
    assert "no such card" in caplog.text
    assert (handle.refresh().state, handle.refresh().attempts) == ("queued", 1)


def test_job_that_enqueues_itself_is_bounded(
    eager: None, settings: Any, process_id: int, hooks: Hooks, caplog: pytest.LogCaptureFixture
) -> None:
    """The rest waits for the next commit, and the log names the task."""
    settings.SALON_JOBS = {**settings.SALON_JOBS, "EAGER_LIMIT": 3}
    ran: list[str] = []

    def again(note: str = "") -> None:
        ran.append(note)
        tasks.system.enqueue(note="again")

    hooks.system = again
    tasks.system.enqueue(note="first")
    assert ran == ["first", "again", "again"]
    assert "3 jobs ran and still more are due; the next is 'test-system'" in caplog.text
    tasks.system.enqueue(note="second")
    assert ran[3:] == ["again", "second", "again"]


@pytest.mark.parametrize(
    ("debug", "roles", "said"),
    [
        (True, None, "salon_jobs.I001"),
        (False, None, "applies with DEBUG alone"),
        (True, {}, "applies without ROLES alone"),
    ],
)
def test_eager_needs_debug_and_one_role(
    settings: Any, monkeypatch: pytest.MonkeyPatch, debug: bool, roles: Any, said: str
) -> None:
    monkeypatch.setattr(checks, "in_tests", lambda: False)
    settings.DEBUG = debug
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ROLES": roles, "EAGER": True}
    _install_eager()
    try:
        assert (wake_ups.on_commit is not None) is (said == "salon_jobs.I001")
    finally:
        wake_ups.on_commit = None
    [message] = [each for each in check_settings() if each.id in ("salon_jobs.I001", "salon_jobs.W005")]
    assert said in str(message)


def test_tests_are_not_warned_of_eager(settings: Any) -> None:
    settings.SALON_JOBS = {**settings.SALON_JOBS, "ROLES": None, "EAGER": True}
    assert not [each for each in check_settings() if each.id == "salon_jobs.W005"]


@pytest.mark.process
def test_eager_is_loaded_on_demand() -> None:
    done = manage("shell", "-c", "import sys; print('salon_jobs.testing.eager' in sys.modules)")
    assert done.stdout.strip().endswith("False"), done.stderr
    assert apps.is_installed("salon_jobs")
