"""Shows that a message to ``rn::jobs:::task`` becomes one job, in its store."""

from __future__ import annotations

from uuid import UUID

import pytest
from django.db import transaction

from salon_jobs import emit, tenant_context
from salon_jobs.core.errors import MessageInvalid
from salon_jobs.models import Job
from salon_jobs.testing import drain_outbox
from tests.backend import calls
from tests.outbox.scene import blocked_count, outages, relay_in_burst, statuses
from tests.support import change, seen


def test_a_message_becomes_one_job_of_its_store(stores: list[UUID]) -> None:
    with tenant_context(stores[1]):
        emit("rn::jobs:::test-store", aggregate_id="a", event="asked", payload={})
    assert relay_in_burst()
    assert list(Job.objects.values_list("task", "store_id", "state")) == [("test-store", stores[1], "queued")]
    # As after a crash between publish and mark.
    change("UPDATE salon_jobs_message SET status = 'pending', sent_at = NULL")
    assert relay_in_burst()
    assert Job.objects.count() == 1
    assert statuses() == {"published": 1}
    assert seen("SELECT consumer, status, job_id FROM salon_jobs_inbox") == [("jobs", "enqueued", Job.objects.get().pk)]


def test_a_task_that_is_registered_nowhere_holds_up_no_other(stores: list[UUID]) -> None:
    for aggregate_id in ("a", "b"):
        change("SELECT salon_jobs_emit('rn::jobs:::gone', %s, 'asked', '{}'::json)", aggregate_id)
    with tenant_context(stores[0]):
        emit("rn::jobs:::test-store", aggregate_id="a", event="asked", payload={})
    relay_in_burst()
    assert seen("SELECT aggregate_type, status, retry_count FROM salon_jobs_message ORDER BY id") == [
        ("rn::jobs:::gone", "pending", 0),
        ("rn::jobs:::gone", "pending", 0),
        ("rn::jobs:::test-store", "published", 0),
    ]
    assert blocked_count() == 0
    assert outages() == ["JOB.UNKNOWN_TASK", ""]


def test_a_task_of_another_library_is_refused_by_emit(stores: list[UUID]) -> None:
    name = calls.add.module_path
    refused = pytest.raises(MessageInvalid, match=rf"rn::jobs:::{name}: .* is not declared with salon_jobs; enqueue it")
    with transaction.atomic(), refused:
        emit(f"rn::jobs:::{name}", aggregate_id="a", event="asked", payload={})


def test_a_drain_publishes_inside_the_tests_own_transaction(stores: list[UUID]) -> None:
    with transaction.atomic():
        with tenant_context(stores[0]):
            emit("rn::jobs:::test-store", aggregate_id="a", event="asked", payload={})
        [drained] = drain_outbox()
        assert drained.answer is None
        assert Job.objects.count() == 1
        transaction.set_rollback(True)
    assert statuses() == {}


def test_a_message_becomes_a_job_on_the_connection_that_it_came_from() -> None:
    with transaction.atomic(using="owner"):
        emit("rn::jobs:::test-system", event="asked", payload={}, using="owner")
        [drained] = drain_outbox(using="owner")
        assert drained.answer is None
        assert Job.objects.using("owner").count() == 1
        transaction.set_rollback(True, using="owner")
    assert not Job.objects.exists()
