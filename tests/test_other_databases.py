"""Shows what an enqueue does while the caller's transaction is open on another alias than the jobs'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal
from uuid import UUID

import pytest
from django.db import transaction
from django.test import TestCase

from salon_jobs import fan_out
from salon_jobs.core.errors import EnqueueRefused
from tests import tasks
from tests.support import seen

WAYS: dict[str, Callable[[UUID], object]] = {
    "one": lambda store_id: tasks.in_store.enqueue(store_id=store_id),
    "system": lambda _: tasks.system.enqueue(),
    "keyed": lambda store_id: tasks.keyed.enqueue(store_id=store_id, number=1),
    "dedupe": lambda store_id: tasks.keyed.using(job_key_mode="unsafe_dedupe").enqueue(store_id=store_id, number=1),
    "many": lambda store_id: tasks.in_store.enqueue_many([tasks.in_store.call(store_id=store_id)]),
    "many keyed": lambda store_id: tasks.keyed.enqueue_many([tasks.keyed.call(store_id=store_id, number=1)]),
    "fan-out": lambda _: fan_out(tasks.in_store),
}


@pytest.mark.parametrize("way", WAYS)
def test_transaction_on_other_alias_is_refused(stores: list[UUID], way: str) -> None:
    with (
        transaction.atomic(using="web"),
        pytest.raises(EnqueueRefused, match=r"open on 'web', the jobs are on 'default'.*on_commit.*using='web'"),
    ):
        WAYS[way](stores[0])
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    WAYS[way](stores[0])
    assert seen("SELECT count(*) > 0 FROM salon_jobs_job") == [(True,)]


@pytest.mark.parametrize("way", WAYS)
def test_jobs_join_transaction_of_their_alias(stores: list[UUID], way: str) -> None:
    for outer, inner in (("web", "default"), ("default", "web")):
        with transaction.atomic(using=outer), transaction.atomic(using=inner):
            WAYS[way](stores[0])
            transaction.set_rollback(True)
            transaction.set_rollback(True, using="web")
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_job_is_added_on_commit(database: None) -> None:
    with transaction.atomic(using="web"):
        transaction.on_commit(tasks.system.enqueue, using="web")
        assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(1,)]


class SeveralDatabases(TestCase):
    """Is a test of a host project with several databases: each is in a transaction, the jobs' too."""

    databases: set[str] | Literal["__all__"] = {"default", "web"}  # noqa: RUF012 - as Django declares it

    def test_testcase_enqueues_on_several_databases(self) -> None:
        with transaction.atomic(using="web"):
            assert tasks.system.enqueue().id
