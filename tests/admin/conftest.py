"""A web process, its staff, and the rows of two stores."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from django.test import Client, override_settings
from django.utils import timezone

from salon_jobs.conf.store_key import store_key
from salon_jobs.core.metrics import BUCKETS, bucket_of
from tests.admin.pages import Rows, WebRouter, staff
from tests.management.operator import insert
from tests.outbox.rows import ORDERS, block, write
from tests.plans.explain import signed_in
from tests.schedules.conftest import own_entries
from tests.settings import SALON_JOBS
from tests.support import change, in_state, seen, selected
from tests.waiting import LIMIT_S

__all__ = ["own_entries"]


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches and actions take the time that they need on a busy machine, where they would be given up."""
    monkeypatch.setattr("salon_jobs.jobs.search.LONGEST_SEARCH", timedelta(seconds=LIMIT_S))
    monkeypatch.setattr("salon_jobs.admin.actions.LONGEST_S", LIMIT_S)


@pytest.fixture
def client(database: None) -> Iterator[Client]:
    """Sign in a superuser, where the role of workers has the pages; see ``operator`` for a web process."""
    with signed_in("boss") as client:
        yield client


@pytest.fixture
def web(database: None) -> Iterator[None]:
    """Be a web process: the web role by default, the operator beside it."""
    wanted = {**SALON_JOBS, "DATABASE": "web", "OPERATOR_DATABASE": "operator"}
    with override_settings(DATABASE_ROUTERS=[WebRouter()], SALON_JOBS=wanted):
        yield
    for table in ("django_admin_log", "membership", "auth_user_user_permissions", "auth_user"):
        change(f"DELETE FROM {table}")


@pytest.fixture
def operator(web: None) -> Client:
    """Sign in as somebody who may do everything."""
    return staff(everything=True)


@pytest.fixture
def two(web: None, stores: list[UUID]) -> tuple[Rows, Rows]:
    """Give two stores the same rows each, of which only the ids and the stores differ."""
    made = []
    for number, store in enumerate(stores[:2]):
        names = {"job_key": f"'key-of-{number}'", "reason": f"'reason-of-{number}'"}
        row = in_state("'failed'", task="'test-store'", store_id="%s", **names)
        [(job,)] = seen(f"INSERT INTO salon_jobs_job {selected(row)} RETURNING id", store)
        message = write("failed", aggregate=f"aggregate-of-{number}", store=store)
        block(message, "parked")
        [(aggregate,)] = seen("SELECT id FROM salon_jobs_blocked_aggregate WHERE head_id = %s", message)
        made.append(Rows(store, job, message, aggregate))
    return made[0], made[1]


@pytest.fixture
def busy(two: tuple[Rows, Rows], stores: list[UUID]) -> tuple[Rows, Rows]:
    """Have something of everything: queues, processes, statistics, cron, relays, an outage, a pause."""
    now = timezone.now()
    hour_ago = now - timedelta(hours=1)
    beat = {"heartbeat_at": now + timedelta(hours=1)}  # as long as the test takes
    insert("process", id=1, kind="supervisor", hostname="shop-1", pid=10, **beat)
    host = {"hostname": "shop-1", "pid": 11, "supervisor_id": 1, **beat}
    insert("process", id=2, kind="worker", **host, concurrency=8, queues='["mail"]')
    insert("process", id=77, kind="relay", hostname="shop-2", pid=12, heartbeat_at=hour_ago)
    mail = {"task": "send-mail", "queue": "mail"}
    insert("job", **mail, store_id=stores[0], run_at=now - timedelta(seconds=90))
    insert("job", **mail, store_id=stores[1], run_at=now + timedelta(days=1))
    insert("job", task="test-system")
    running = {"state": "running", "leased_by": 2, "lease": 1, "started_at": now - timedelta(minutes=3)}
    insert("job", task="long-haul", queue="mail", store_id=stores[0], **running)
    change(
        "INSERT INTO salon_jobs_job_error (job_id, store_id, attempt, error_class)"
        f" SELECT n, (ARRAY[%s, %s]::{store_key().sql}[])[1 + (n %% 3 = 0)::int], 1, 'TillOnFire'"
        " FROM generate_series(1, 9) AS n",
        *stores[:2],
    )
    waits = [0] * BUCKETS
    waits[bucket_of(0.5)] = 40
    change(
        "INSERT INTO salon_jobs_task_minute SELECT date_trunc('minute', now()) - n * interval '1 minute',"
        " 'send-mail', 'mail', 30, 5, 2, 3, 0, 0, 0, 20.0, %s, 20.0, %s FROM unnest('{0,2,4,300,5000}'::int[]) AS n",
        waits,
        waits,
    )
    change(
        "INSERT INTO salon_jobs_queue_minute SELECT date_trunc('minute', now()) - n * interval '1 minute', 'mail',"
        " 100 - 10 * n, 50, 1.0, true FROM generate_series(0, 5) AS n"
    )
    change("INSERT INTO salon_jobs_cron_entry (name) VALUES ('nightly'), ('monthly'), ('hourly')")
    for entry, days, job in (("monthly", 8, 1000001), ("hourly", 6, 1000002)):
        at = now - timedelta(days=days)
        insert("cron_tick", entry=entry, tick_at=at, fired_at=at, job_id=job)
    insert("cron_tick", entry="nightly", tick_at=hour_ago, job_id=two[1].job)
    change("INSERT INTO salon_jobs_partition (partition, owner) VALUES (0, 77), (1, NULL)")
    since = now - timedelta(minutes=5)
    insert("destination", aggregate_type=ORDERS, paused=True, outage_since=since, outage_code="BROKER.DOWN")
    insert("limit", kind="queue", name="mail", paused=True)
    return two
