"""Every way into the table writes the concurrency key, for every role; without it a limit counts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import override_settings

from salon_jobs import enqueue_job, fan_out, store_task, task, tenant_context
from salon_jobs.core.errors import OptionInvalid, PayloadInvalid
from salon_jobs.jobs import registry
from salon_jobs.jobs.options import KeyMode
from salon_jobs.jobs.task import Task
from tests.settings import SALON_JOBS
from tests.support import seen

Declared = tuple[Task[..., Any], Task[..., Any]]


@pytest.fixture
def declared(database: None) -> Iterator[Declared]:
    """Declare a system task and a store task whose jobs have concurrency keys."""

    @task(name="test-charge", concurrency_key="card:{card}")
    def charge(card: str) -> None: ...

    @store_task(name="test-call", concurrency_key="{store_id}:{line}")
    def call(store_id: UUID, line: str = "a") -> None: ...

    yield charge, call
    registry.unregister("test-charge")
    registry.unregister("test-call")


def keys() -> list[str | None]:
    return [row[0] for row in seen("SELECT concurrency_key FROM salon_jobs_job ORDER BY id")]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("alias", ["default", "web"])
def test_key_from_arguments(declared: Declared, stores: list[UUID], alias: str, keyed: bool) -> None:
    charge, call = declared
    store = stores[1]

    def bound(task: Task[..., Any], job_key: str, **options: Any) -> Any:
        return task.using(job_key=job_key if keyed else None, **options)

    with override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": alias}):
        bound(charge, "1").enqueue(card="visa")
        bound(charge, "2").enqueue_many([charge.call(card="a\nb,\\ '")])
        bound(charge, "3", concurrency_key="mine").enqueue(card="visa")
        charge.using(concurrency_key="mine").enqueue_many([charge.call(card="visa"), charge.call(card="amex")])
        with tenant_context(store):
            bound(call, "1").enqueue(store_id=store)
            bound(call, "2").enqueue_many([call.call(store_id=store, line="b\nb")])
            enqueue_job("test-call", {"store_id": str(store)}, concurrency_key="mine")
    assert keys() == ["card:visa", "card:a\nb,\\ '", *["mine"] * 3, f"{store}:a", f"{store}:b\nb", "mine"]


@pytest.mark.parametrize(
    ("mode", "expected"), [("replace", "new"), ("preserve_run_at", "new"), ("unsafe_dedupe", "old")]
)
@pytest.mark.parametrize("name", ["test-charge", "test-call"])
def test_key_after_upsert(declared: Declared, stores: list[UUID], name: str, mode: KeyMode, expected: str) -> None:
    payload: dict[str, Any] = {"card": "visa"} if name == "test-charge" else {"store_id": str(stores[0])}
    for key in ("old", "new"):
        enqueue_job(name, payload, job_key="same", job_key_mode=mode, concurrency_key=key)
    assert keys() == [expected]


@pytest.mark.parametrize("job_key", [None, "same"])
def test_keys_of_fan_out(declared: Declared, stores: list[UUID], job_key: str | None) -> None:
    _, call = declared
    fan_out(call.using(job_key=job_key), line="a")
    assert sorted(map(str, keys())) == [f"{store}:a" for store in stores]
    fan_out(call.using(job_key=job_key, concurrency_key="mine"), line="a")
    assert keys().count("mine") == 3, "those that wait are met, and changed as everything else of them"


def test_key_from_sql(stores: list[UUID]) -> None:
    with connections["web"].cursor() as cursor:
        cursor.execute("SELECT salon_jobs_add_job('test-system', concurrency_key => 'visa')")
        cursor.execute("SELECT salon_jobs_add_job('test-system', job_key => 'k', concurrency_key => '')")
        cursor.execute("SELECT salon_jobs_add_jobs('test-system', ARRAY['{}', '{}'], concurrency_keys => ARRAY['a'])")
        cursor.execute(
            "SELECT salon_jobs_enqueue('test-system', '{}', NULL, jsonb_build_object('concurrency_key', key))"
            " FROM unnest(ARRAY['b', '']) AS key"
        )
    assert keys() == ["visa", None, "a", None, "b", None], (
        "an empty one is none: a claim group could not distinguish them"
    )


def test_invalid_key_is_refused(declared: Declared, stores: list[UUID]) -> None:
    charge, _ = declared

    @task(name="test-bare", concurrency_key="{card}")
    def bare(card: str) -> None: ...

    try:
        for wrong in ("", "x" * 256):
            with pytest.raises(PayloadInvalid, match=r"test-bare.*concurrency key must have 1 to 255 characters"):
                bare.enqueue(card=wrong)
            with pytest.raises(OptionInvalid, match="concurrency_key must be a string of 1 to 255"):
                charge.using(concurrency_key=wrong)
    finally:
        registry.unregister("test-bare")
    assert keys() == []
