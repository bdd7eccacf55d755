"""Holds that a system task, which belongs to no store, cannot become one."""

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
from tests.support import run_due, seen


def test_it_sees_and_changes_no_row_and_opens_no_context(
    stores: list[UUID], hooks: tasks.Hooks, process_id: int
) -> None:
    assert seen("SELECT count(*) FROM store") == [(3,)]
    found: list[object] = []

    def body(**_: object) -> None:
        with transaction.atomic():
            found.append((current_store_id(), Store.objects.count(), Store.objects.update(name="changed")))
        for options in ({}, {"atomic": False}, {"switch": True}):
            arguments: dict[str, Any] = options
            with pytest.raises(TenantContextError, match="'test-system' is a system task"):
                tenant_context(stores[0], **arguments).__enter__()
        with tenant_context(stores[0]):
            Customer.objects.all().delete()

    hooks.system = body
    tasks.system.enqueue()
    [outcome] = run_due(process_id)
    assert isinstance(outcome, Errored)
    assert isinstance(outcome.error, TenantContextError)
    assert found == [(None, 0, 0)]
    with tenant_context(stores[0]):
        assert Store.objects.count() == 1, "what comes after it is free again"


def test_an_async_one_neither(stores: list[UUID], hooks: tasks.Hooks, process_id: int) -> None:
    async def body(**_: object) -> None:
        for opened in (tenant_context(stores[0]), tenant_context(stores[0], atomic=False)):
            with pytest.raises(TenantContextError, match="is a system task"):
                await opened.__aenter__()
            with pytest.raises(TenantContextError, match="is a system task"):
                await sync_to_async(opened.__enter__)()
            with pytest.raises(TenantContextError, match="is a system task"):
                await asyncio.create_task(opened.__aenter__())

    hooks.coroutine = body
    tasks.async_system.enqueue()
    assert run_due(process_id) == [Succeeded(finished=False)]


def test_the_kit_performs_it_likewise(stores: list[UUID], hooks: tasks.Hooks) -> None:
    hooks.system = lambda **_: tenant_context(stores[0]).__enter__()
    with pytest.raises(TenantContextError, match="is a system task"):
        perform_job(tasks.system)
