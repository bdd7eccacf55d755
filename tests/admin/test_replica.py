"""Opens the admin where a router sends reads to a replica that has not yet received what was written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connections
from django.test import Client

from salon_jobs import schedule
from salon_jobs.models import Job, JobError
from tests import tasks
from tests.admin.pages import ADMIN, Rows, WebRouter, form, html_of, staff
from tests.databases import spare_database
from tests.management.operator import insert
from tests.support import change, seen


class ReadsFromReplica(WebRouter):
    """Sends every read of ours to the replica."""

    def db_for_read(self, model: Any, **hints: object) -> str | None:
        return super().db_for_read(model, **hints) or "replica"

    def db_for_write(self, model: Any, **hints: object) -> str | None:
        return super().db_for_read(model, **hints) or "default"


@pytest.fixture(scope="module")
def copy(migrated: None) -> Iterator[str]:
    """Create a database that has our tables, and no row."""
    with spare_database(copied=True) as name:
        yield name


@pytest.fixture
def replica(web: None, settings: Any, copy: str) -> Iterator[None]:
    connections.settings["replica"] = {**connections.settings["owner"], "NAME": copy}
    settings.DATABASE_ROUTERS = [ReadsFromReplica()]
    yield
    connections["replica"].close()
    del connections["replica"], connections.settings["replica"]


def test_rows_are_read_where_they_are_written(replica: None) -> None:
    for model in apps.get_app_config("salon_jobs").get_models():
        for manager in (model._default_manager, model._base_manager):
            assert manager.db == manager.all().db == manager.exclude().order_by("pk").db == "default", model
            assert manager.using("replica").db == "replica", "somebody asks otherwise"
            assert manager.db_manager("replica").all().db == "replica", model
            assert manager.db_manager(hints={"instance": JobError()}).all().db == "default", model
        row = model()
        row._state.db = "web"
        beside = model._base_manager.db_manager(hints={"instance": row}).all()
        assert beside.db == "web", "the rest of a row is beside it"


def test_new_job_is_read_at_once(replica: None) -> None:
    insert("job", task="test-system", payload='{"n": 1}')
    job = Job.objects.defer("payload").get()
    assert job.payload == {"n": 1}
    change("UPDATE salon_jobs_job SET priority = 3")
    job.refresh_from_db()
    assert job.priority == 3
    assert list(Job.objects.raw("SELECT * FROM salon_jobs_job")) == [job]
    assert not Job.objects.using("replica").exists()


def test_every_page_shows_new_rows(
    replica: None, operator: Client, busy: tuple[Rows, Rows], stores: list[UUID]
) -> None:
    now = datetime.now(UTC)
    run = {"run_at": now, "created_at": now, "started_at": now, "finished_at": now, "attempts": 1, "worker_id": 3}
    job = {"job_id": 4711, "store_id": stores[0], "task": "count-orders", "queue": "default", "priority": 0}
    insert("job_result", **job, **run, payload="{}", value='{"orders": 42}', expires_at=now + timedelta(hours=1))
    schedule(tasks.system.call(note="x"), every=timedelta(seconds=10), key="often")
    opened = set()
    for model in admin.site._registry:
        if model._meta.app_label != "salon_jobs":
            continue
        name = str(model._meta.model_name)
        found = re.search(rf'href="(?:/admin/salon_jobs/)?({name}/[^/"]+/change/)', html_of(operator, f"{name}/"))
        if found:
            opened.add(name)
            html_of(operator, found[1])
    assert opened >= {"job", "schedule", "jobresult", "message", "process", "cronentrystate", "destinationstate"}
    html_of(operator, "job/4711/change/")


def test_retry_finds_the_failed_job(replica: None, operator: Client, two: tuple[Rows, Rows]) -> None:
    for client, rows, store in ((operator, two[0], ""), (staff(two[1].store), two[1], str(two[1].store))):
        html_of(client, "job/?state=failed")
        html_of(client, f"job/{rows.job}/change/")
        assert client.post(f"{ADMIN}job/", form("retry", rows.job)).status_code == 200
        retry = form("retry", rows.job, confirmed="1", store=store)
        answer = client.post(f"{ADMIN}job/?state__exact=failed", retry, follow=True)
        assert answer.status_code == 200
        assert seen("SELECT state FROM salon_jobs_job WHERE id = %s", rows.job) == [("queued",)]
