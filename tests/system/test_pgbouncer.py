"""Runs every process through the real PgBouncer in transaction mode, on fewer connections than they have threads."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import connections, transaction

from project.salon.models import Store
from salon_jobs import tenant_context
from salon_jobs.core.errors import TenantContextError
from salon_jobs.db.connections import holds_job_tables
from tests.conftest import manage
from tests.e2e import tasks
from tests.e2e.held import Held
from tests.e2e.worker_process import ENDS_IN_TIME, URL, WorkerProcess
from tests.interpreter import run_command
from tests.servers.nats import NatsBroker
from tests.settings import url_for
from tests.support import freeze, row_of, seen
from tests.system.pgbouncer import pgbouncer
from tests.waiting import eventually

pytestmark = pytest.mark.system

ACTIVITY = "SELECT FROM pg_stat_activity WHERE datname = current_database()"
DIRECT = URL
QUICK: dict[str, Any] = {"PROCESS_SILENT_AFTER": 2, "POLL_INTERVAL": 0.2, "LISTEN": False}
# What is special about them: fences, locks, transactions, stores, rescue, cron, the gate and the relays' partitions.
TESTS = (
    *(f"jobs/test_{name}.py" for name in ("enqueue", "fan_out", "key_locks", "operate")),
    "schedules/test_scheduler.py",
    *(f"worker/test_{name}.py" for name in ("ends", "executor", "fences", "finisher", "maintenance", "transactions")),
    *(f"tenancy/test_{name}.py" for name in ("async_context", "carry", "system_tasks", "tenant_context")),
    *(f"outbox/test_{name}.py" for name in ("gate", "ownership")),
)


@pytest.fixture(scope="module")
def port(migrated: None) -> Iterator[int]:
    with pgbouncer(pool_size=4) as port:
        yield port


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return Held(tmp_path / "held")


@pytest.fixture
def pooled(port: int) -> Iterator[str]:
    """Enqueue through it, too; gives the worker's URL."""
    direct_port = connections.settings["default"]["PORT"]
    connections["default"].close()
    connections.settings["default"]["PORT"] = port
    yield through(DIRECT, port)
    connections["default"].close()
    connections.settings["default"]["PORT"] = direct_port


def through(url: str, port: int) -> str:
    host = url.rpartition("@")[2].partition("/")[0]
    return url.replace(host, f"127.0.0.1:{port}")


def test_connections_are_shared(database: None, pooled: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone()[0] != connections["default"].connection.info.backend_pid


def test_threads_on_shared_connections_see_their_store(stores: list[UUID], pooled: str) -> None:
    backends: set[int] = set()

    def look(store: UUID, *, atomic: bool) -> None:
        for _ in range(20):
            with tenant_context(store, atomic=atomic), transaction.atomic(), connections["default"].cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid(), array_agg(id) FROM store")
                pid, seen_stores = cursor.fetchone()
                backends.add(pid)
                assert seen_stores == [store]
            assert list(Store.objects.all()) == []

    def work(number: int) -> None:
        try:
            look(stores[number % 3], atomic=number % 2 == 0)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(12)))
    assert len(backends) <= 4, "the eight threads shared the connections of the pool"


@pytest.mark.parametrize("is_open", [True, False])
def test_session_scope_is_refused(stores: list[UUID], pooled: str, is_open: bool) -> None:
    """It leaves nothing on any shared connection."""
    connection = connections["default"]
    if is_open:
        connection.ensure_connection()
    context = tenant_context(stores[0], atomic=False, scope="session")
    if is_open:
        with pytest.raises(TenantContextError, match="a pooler stands between"):
            context.__enter__()
    else:
        with context:
            for _ in range(2):
                with pytest.raises(TenantContextError, match="a pooler stands between"):
                    list(Store.objects.all())
    for _ in range(20):  # more than the pool has
        assert list(Store.objects.all()) == []
    with tenant_context(stores[1]):
        assert Store.objects.get().pk == stores[1]


def test_suites_pass_through_the_pooler() -> None:
    """Those of what needs transactions and locks."""
    # A server of their own: the roles, whose passwords they set, belong to the whole server.
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL_BOOTSTRAP"}
    # Some end the connection of a statement: behind a pooler that may be any, and it is replaced unseen. Others set
    # something on a session, which needs a direct connection.
    unfit = " or ".join(
        (
            *("failed_wake_up_is_logged", "lost_connection_is_replaced", "lost_connection_is_operational_error"),
            *("worker_reads_timeline", "locked_table_is_waited_out", "(thread_starts_without_store and True)"),
            "stricter_isolation_changes_nothing",  # the pool would keep its connections
        )
    )
    plugins = ("-p", "tests.system.through_pgbouncer", "-p", "no:cacheprovider", "-p", "no:randomly")
    options = ("-q", *plugins, "-k", f"not ({unfit})")
    words = (sys.executable, "-m", "pytest", *options, *(f"tests/{name}" for name in TESTS))
    done = run_command(*words, environment=environment, timeout_s=600)
    assert done.returncode == 0, done.stdout


def test_deaf_worker_polls(database: None, pooled: str) -> None:
    with WorkerProcess("--concurrency", "2", url=pooled, POLL_INTERVAL=0.5, ready=True) as worker:
        deaf = worker.wait_for("listener_deaf", level="warning")
        assert "SALON_JOBS['LISTEN']" in deaf["detail"]
        assert worker.children()[0]["listening"] is False
        for _ in range(3):
            worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        assert len(worker.logged("listener_deaf")) == 1
        assert worker.end() == 0


def test_direct_url_for_listening_wakes(database: None, pooled: str) -> None:
    with WorkerProcess("--concurrency", "2", url=pooled, LISTEN=DIRECT, POLL_INTERVAL=3600, ready=True) as worker:
        eventually(lambda: worker.children()[0]["listening"] is True)
        for _ in range(5):
            worker.wait_for("job_succeeded", job_id=tasks.nothing.enqueue().id)
        assert not worker.logged("listener_deaf")


def test_message_through_the_pooler(stores: list[UUID], pooled: str) -> None:
    with closing(NatsBroker()) as nats:
        nats.start()
        orders = nats.destination("orders")
        settings = {
            **nats.settings(),
            "LISTEN": False,
            "POLL_INTERVAL": 0.2,
            "OUTBOX": {"PRODUCER": "test", "POLL_INTERVAL": 0.2},
            "CONSUMERS": {"orders": {"SOURCE": orders, "TASKS": {"order.created": tasks.write.name}}},
        }
        with WorkerProcess("--with-relay", "--with-consumer", url=pooled, **settings) as worker:
            for store in stores:
                with tenant_context(store):
                    tasks.emit_order.enqueue(store_id=store, to=orders)
            for store in stores:
                worker.wait_for("job_succeeded", task_name=tasks.write.name, store_id=str(store))
            assert worker.end() == 0
        assert len(nats.received(orders)) == len(stores)


def test_jobs_of_many_stores(stores: list[UUID], pooled: str, port: int) -> None:
    jobs = 40
    with WorkerProcess("--concurrency", "8", "--with-scheduler", url=pooled, POLL_INTERVAL=0.2, ready=True) as worker:
        calls = [tasks.write_and_look.call(store_id=store) for _ in range(jobs) for store in stores]
        ids = {handle.id for handle in tasks.write_and_look.enqueue_many(calls)}
        once_a_store = {tasks.write_outside.enqueue(store_id=store).id for store in stores}
        ids |= once_a_store
        smoke = manage("ping", DATABASE_URL=through(url_for("app"), port))
        assert smoke.returncode == 0, smoke.stderr
        ids.add(int(smoke.stdout))
        eventually(
            lambda: ids <= {record["job_id"] for record in worker.logged("job_succeeded")}, what=lambda: worker.output
        )
        assert len(worker.logged("job_succeeded")) >= len(ids)
        assert not worker.logged("job_retried")
        assert not worker.logged("database_lost")
        assert worker.end() == 0
    effects = seen("SELECT store_id, count(*) FROM customer GROUP BY 1 ORDER BY 1")
    assert effects == [(store, jobs + 1) for store in stores]
    assert seen("SELECT count(*) FROM salon_jobs_job WHERE task LIKE 'e2e%%'") == [(0,)]


def test_cron_fan_out_runs_in_every_store(stores: list[UUID], pooled: str) -> None:
    fired = manage("runscheduler", "--burst", "--at", "2026-05-05T17:00:00Z", WORKER_DATABASE_URL=pooled)
    assert fired.returncode == 0, fired.stderr
    with WorkerProcess("--burst", "--concurrency", "4", url=pooled) as worker:
        assert worker.wait() == 0
        done = worker.logged("job_succeeded", task_name="cleanup-deleted-customers-for-store")
        assert sorted(UUID(record["store_id"]) for record in done) == stores
    assert seen("SELECT count(*) FROM salon_jobs_job") == [(0,)]


def test_killed_worker_is_rescued(stores: list[UUID], pooled: str, held: Held) -> None:
    with WorkerProcess("--concurrency", "1", url=pooled, **QUICK, ready=True) as victim:
        job_id = held.begin(store_id=stores[0])
        with WorkerProcess("--concurrency", "1", url=pooled, **QUICK, ready=True) as other:
            assert other.children()[0]["listening"] == "off"
            process_id = victim.wait_for("process_started", kind="worker")["process_id"]
            victim.stop(signal.SIGKILL)
            victim.wait()
            held.let_go()
            other.wait_for("process_dead", process_id=process_id)
            other.wait_for("job_succeeded", job_id=job_id)
    assert seen("SELECT store_id, count(*) FROM customer GROUP BY 1") == [(stores[0], 1)]


def test_frozen_worker_finishes_nothing(stores: list[UUID], pooled: str, held: Held) -> None:
    with WorkerProcess("--concurrency", "1", url=pooled, **QUICK, ready=True) as victim:
        job_id = held.begin(store_id=stores[0])
        [child] = victim.children()
        pids = [victim.pid, child["pid"]]
        for pid in pids:
            freeze(pid)
        held.let_go()
        with WorkerProcess("--concurrency", "1", url=pooled, **QUICK) as other:
            other.wait_for("process_dead", process_id=child["process_id"])
            # The name of the process goes through the pooler, so its burial ends the transaction it left open.
            # The other worker's own transactions are between two statements for a moment, too.
            eventually(lambda: not seen(f"{ACTIVITY} AND state = 'idle in transaction'"))
            other.wait_for("job_succeeded", job_id=job_id)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            victim.wait_for("child_killed", process_id=child["process_id"])
            eventually(lambda: len(victim.logged("process_started", kind="worker")), 2)
            victim.wait_until_ready()
            assert victim.end() == 0
    assert not victim.logged("job_succeeded")
    assert seen("SELECT count(*) FROM customer") == [(1,)]


def test_query_is_cancelled_through_the_pooler(stores: list[UUID], pooled: str) -> None:
    settings: dict[str, Any] = {"SHUTDOWN_GRACE": 4, "LISTEN": False, "POLL_INTERVAL": 0.2, "PATCHES": ENDS_IN_TIME}
    with WorkerProcess("--concurrency", "1", url=pooled, **settings, ready=True) as worker:
        handle = tasks.sleep_in_query.enqueue(store_id=stores[0])
        eventually(lambda: seen(f"{ACTIVITY} AND query LIKE 'SELECT pg_sleep%%'"))
        assert worker.end() == 0
        worker.wait_for("job_released", job_id=handle.id)
    assert row_of(handle.id)["state"] == "queued"


def test_exhausted_pool_kills_nobody(stores: list[UUID], port: int, held: Held) -> None:
    """Hold every connection for longer than a silence: nobody can beat, so nobody may be judged."""
    with WorkerProcess("--concurrency", "8", url=through(DIRECT, port), **QUICK, ready=True) as worker:
        ids = [held.enqueue(store_id=stores[0]) for _ in range(8)]
        held.wait_for_runs(4)
        eventually(lambda: seen("SELECT bool_and(now() - heartbeat_at > '4 s') FROM salon_jobs_process"), [(True,)])
        held.let_go()
        for job_id in ids:
            worker.wait_for("job_succeeded", job_id=job_id)
        worker.wait_until_ready()
        assert worker.end() == 0
        assert not worker.logged("process_dead")
    assert seen("SELECT count(*) FROM customer") == [(8,)]


def test_pooler_leads_to_the_same_database(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["web"].settings_dict, "PORT", port)
    assert holds_job_tables("web")
