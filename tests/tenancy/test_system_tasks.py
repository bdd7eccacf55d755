"""System tasks, which belong to no store: they open no tenant context, and reach no row of a store."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from project.salon.models import Customer, Store
from salon_jobs import current_store_id, tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.core.outcomes import Errored, Succeeded
from salon_jobs.testing import perform_job
from tests import tasks
from tests.support import run_due
from tests.tenancy.probe import ask, backend, carried


def test_system_task_reaches_no_store(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    """It runs as the worker without a store, also after a store's jobs; ``matrix.py`` says what that reaches."""
    notes: list[object] = []
    backends: set[int] = set()

    def in_store(**_: object) -> None:
        with transaction.atomic():
            backends.add(backend())
            notes.append(Store.objects.count())

    def in_system(**_: object) -> None:
        backends.add(backend())
        notes.append((ask("SELECT (session_user, current_user)::text"), carried()))
        with transaction.atomic():
            notes.append((current_store_id(), Store.objects.count(), Store.objects.update(name="changed")))
        for options in ({}, {"atomic": False}, {"switch": True}):
            arguments: dict[str, Any] = options
            with pytest.raises(TenantContextError, match="'test-system' is a system task"):
                tenant_context(stores[0], **arguments).__enter__()
        with tenant_context(stores[0]):
            Customer.objects.all().delete()

    hooks.store, hooks.system = in_store, in_system
    for declared in (tasks.in_store, tasks.outside):
        declared.enqueue(store_id=stores[0])
        assert run_due(process_id) == [Succeeded(finished=declared is tasks.in_store)]
    tasks.system.enqueue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, TenantContextError)
    assert (notes, len(backends)) == ([1, 1, ("(worker_runtime,worker_runtime)", ""), (None, 0, 0)], 1)
    with tenant_context(stores[0]):
        assert Store.objects.count() == 1, "what comes after it is free again"
    with pytest.raises(TenantContextError, match="is a system task"):
        perform_job(tasks.system)


def test_async_system_task_opens_no_context(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    async def body(**_: object) -> None:
        for opened in (tenant_context(stores[0]), tenant_context(stores[0], atomic=False)):
            for enter in (
                opened.__aenter__,
                sync_to_async(opened.__enter__),
                lambda opened=opened: asyncio.create_task(opened.__aenter__()),
            ):
                with pytest.raises(TenantContextError, match="is a system task"):
                    await enter()

    hooks.coroutine = body
    tasks.async_system.enqueue()
    assert run_due(process_id) == [Succeeded(finished=False)]
