"""Shows that a message to ``rn::jobs:::task`` becomes one job, in its store, or fails alone."""

from __future__ import annotations

from contextlib import nullcontext
from uuid import UUID

import pytest
from django.db import transaction

from salon_jobs import emit, tenant_context
from salon_jobs.core.errors import MessageInvalid
from salon_jobs.models import Job
from salon_jobs.testing import drain_outbox
from tests.backend import calls
from tests.outbox.rows import POISON
from tests.outbox.scene import blocked_count, outages, relay_in_burst, statuses
from tests.support import change, seen


def test_message_becomes_one_job_of_its_store(stores: list[UUID]) -> None:
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


def test_payload_of_another_store_is_refused(stores: list[UUID]) -> None:
    """As by a consumer: it is not known for which of the two the job was meant."""
    with tenant_context(stores[1]):
        for number, named in enumerate(stores[:2]):
            emit(
                "rn::jobs:::test-store", aggregate_id="a", event="asked", payload={"number": number, "store_id": named}
            )
        emit("rn::jobs:::test-store", aggregate_id="b", event="asked", payload={"number": 2, "store_id": stores[1]})
    assert relay_in_burst()
    assert list(Job.objects.values_list("store_id", "payload")) == [(stores[1], {"number": 2})]
    found = seen("SELECT status, last_error FROM salon_jobs_message ORDER BY id")
    why = "JOB.PAYLOAD_INVALID its payload names another store_id than the message"
    assert found == [("failed", why), ("pending", ""), ("published", "")]


def test_unknown_task_holds_up_no_other(stores: list[UUID]) -> None:
    for aggregate_id in ("a", "b"):
        change("SELECT salon_jobs_emit('rn::jobs:::gone', %s, 'asked', '{}'::json)", aggregate_id)
    with tenant_context(stores[0]):
        emit("rn::jobs:::test-store", aggregate_id="a", event="asked", payload={})
    relay_in_burst()
    rows = seen("SELECT aggregate_type, status, retry_count FROM salon_jobs_message ORDER BY id")
    assert rows == [*[("rn::jobs:::gone", "pending", 0)] * 2, ("rn::jobs:::test-store", "published", 0)]
    assert blocked_count() == 0
    assert outages() == ["JOB.UNKNOWN_TASK", ""]


@pytest.mark.parametrize("task", ["test-system", "test-keyed-system"])
def test_payload_that_becomes_no_job_fails_alone(task: str) -> None:
    fits = {"a long text"} if task == "test-system" else set[str]()  # it is in no key
    poison = [payload for name, payload in POISON.items() if name not in fits]
    for number, payload in enumerate([*poison, '{"note": "x"}']):
        change("SELECT salon_jobs_emit(%s, %s, 'e', %s::json)", f"rn::jobs:::{task}", str(number), payload)
    relay_in_burst()
    rows = seen("SELECT status, last_error <> '' FROM salon_jobs_message ORDER BY id")
    assert rows == [*[("failed", True)] * len(poison), ("published", False)]
    assert outages() == [""]


def test_missing_right_is_no_messages_fault() -> None:
    """It waits until an operator gives it."""
    change("SELECT salon_jobs_emit('rn::jobs:::test-system', 'a', 'asked', '{}'::json)")
    [(signature, roles)] = seen(
        "SELECT oid::regprocedure::text, ARRAY(SELECT grantee::regrole::text FROM aclexplode(proacl)"
        " WHERE grantee <> proowner AND privilege_type = 'EXECUTE') FROM pg_proc WHERE proname = 'salon_jobs_enqueue'"
    )
    change(f"REVOKE EXECUTE ON FUNCTION {signature} FROM {', '.join(roles)}")
    try:
        relay_in_burst()
        assert outages() == ["JOB.ENQUEUE_REFUSED"]
        assert statuses() == {"pending": 1}
    finally:
        change(f"GRANT EXECUTE ON FUNCTION {signature} TO {', '.join(roles)}")
    relay_in_burst()
    assert statuses() == {"published": 1}


def test_task_of_another_library_is_refused(stores: list[UUID]) -> None:
    name = calls.add.module_path
    refused = pytest.raises(MessageInvalid, match=rf"rn::jobs:::{name}: .* is not declared with salon_jobs: enqueue it")
    with transaction.atomic(), refused:
        emit(f"rn::jobs:::{name}", aggregate_id="a", event="asked", payload={})


@pytest.mark.parametrize(("using", "task"), [("default", "test-store"), ("owner", "test-system")])
def test_drain_inside_the_tests_transaction(stores: list[UUID], using: str, task: str) -> None:
    """The job is written on the connection that the message came from."""
    with transaction.atomic(using=using):
        with tenant_context(stores[0]) if task == "test-store" else nullcontext():
            emit(f"rn::jobs:::{task}", event="asked", payload={}, using=using)
        [drained] = drain_outbox(using=using)
        assert drained.answer is None
        assert Job.objects.using(using).count() == 1
        transaction.set_rollback(True, using=using)
    assert not Job.objects.exists()
    assert statuses() == {}
