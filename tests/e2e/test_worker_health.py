"""Tests what a worker process answers and refuses while database, role or tables are not as they should be."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from project.local.ports import free_port
from tests.databases import spare_database
from tests.e2e import tasks
from tests.e2e.severing_proxy import SeveringProxy
from tests.e2e.worker_process import URL, WorkerProcess
from tests.metrics import of, scraped
from tests.servers.forwarder import Forwarder
from tests.settings import PASSWORD, url_for
from tests.support import freeze, row_of, seen
from tests.waiting import eventually

WORKER = "worker_runtime"
FAST: dict[str, Any] = {"POLL_INTERVAL": 0.2}


@pytest.fixture
def way() -> Iterator[Forwarder]:
    """Return what is between the worker and the database, whose connections it refuses for now."""
    forwarder = Forwarder(urlsplit(URL).port or 5432)
    forwarder.open()
    forwarder.cut()
    yield forwarder
    forwarder.cut()


def test_database_that_goes_away_and_comes_back(database: None, way: Forwarder) -> None:
    url = URL.replace(f":{way.target_port}/", f":{way.port}/")
    with WorkerProcess(url=url, **FAST) as worker:
        scrape = partial(scraped, worker.address)
        worker.wait_for("waiting", code="WORKER.NOT_READY")
        for is_new in (True, False):
            assert worker.ask("/healthz") == (200, {"status": "ok"})
            status, answer = worker.ask("/readyz")
            assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
            if not is_new:
                worker.wait_for("database_lost", loop="claim")
                # What is ill is not asked: the metrics are there, and say how old they are.
                eventually(lambda: of(scrape(), "finished_total", task="ping", outcome="succeeded"), 1)
                eventually(lambda: of(scrape(), "loop_age_seconds", loop="claim") > 1)
            way.open()
            [(job_id,)] = seen("INSERT INTO salon_jobs_job (task) VALUES ('ping') RETURNING id")
            worker.wait_for("job_succeeded", job_id=job_id)
            worker.wait_until_ready()
            if is_new:
                way.cut()
        assert worker.end() == 0
        assert PASSWORD not in worker.output


def test_hanging_database_is_reported_at_once(database: None) -> None:
    with (
        SeveringProxy(URL) as proxy,
        WorkerProcess(url=proxy.url, **FAST, PATCHES={"salon_jobs.conf.Settings.stale_after_s": 2}) as worker,
        psycopg.connect(url_for(None)) as owner,
    ):
        at = worker.wait_until_ready().address
        proxy.hang()
        assert worker.ask("/readyz")[0] == 503
        before = proxy.accepted
        with ThreadPoolExecutor(5) as probes:
            answers = list(probes.map(worker.ask, ["/readyz"] * 5))
        assert {(status, said["code"]) for status, said in answers} == {(503, "WORKER.NOT_READY")}
        assert all("the database does not answer: asked" in said["detail"] for _, said in answers)
        assert proxy.accepted == before, "however often it is asked"
        eventually(lambda: of(scraped(at), "ready", kind="supervisor"), 0)
        assert of(scraped(at), "loop_age_seconds", loop="claim") > 2, "served while it is not ready, too"
        proxy.go_on()
        worker.wait_until_ready()
        # The heartbeat may go on while claims hang: it must not call itself ready.
        owner.execute("SELECT FROM salon_jobs_process FOR NO KEY UPDATE")
        eventually(lambda: "no heartbeat was written" in worker.readiness().get("detail", ""))
        owner.rollback()
        [child] = worker.wait_until_ready().children()
        freeze(child["pid"])
        eventually(lambda: "runs nothing and says nothing" in worker.readiness().get("detail", ""))
        os.kill(child["pid"], signal.SIGCONT)
        worker.wait_until_ready()


def test_only_the_worker_role_may_work(migrated: None) -> None:
    workers = {role: WorkerProcess("--burst", url=url_for(role)) for role in ("migrator", "app", "jobs_operator", None)}
    expected = {
        "migrator": "'migrator' owns the job tables and is the migrator",
        "app": "'app' is not 'worker_runtime'",
        "jobs_operator": "'jobs_operator' is not 'worker_runtime'",
        None: "is a superuser",
    }
    for role, worker in workers.items():
        with worker:
            assert worker.wait() == 1, role
            assert "WORKER.FORBIDDEN_ROLE" in worker.output
            assert expected[role] in worker.output
            assert "Traceback" not in worker.output


def test_burst_says_at_once_what_is_wrong(migrated: None) -> None:
    with spare_database(copied=False) as empty:
        told = {
            WorkerProcess("--burst", url=url, LISTEN=listen): words
            for url, listen, *words in (
                (url_for(WORKER, "absent"), True, "WORKER.NOT_READY", '"absent" does not exist'),
                (f"postgresql://{WORKER}:x@127.0.0.1:{free_port()}/x", True, "WORKER.NOT_READY", "refused"),
                (URL.replace(PASSWORD, "wrong"), True, "WORKER.NOT_READY", "password"),
                (url_for(WORKER, empty), True, "WORKER.SCHEMA_MISSING", "python manage.py migrate"),
                (
                    *(URL, "postgresql//u:secret@h/x"),
                    "SALON_JOBS['LISTEN'] must be True, False or a URL such as postgresql://",
                ),
            )
        }
        for worker, words in told.items():
            with worker:
                assert worker.wait() == 1
                assert all(each in worker.output for each in words), worker.output
                assert "Traceback" not in worker.output
                assert "secret" not in worker.output


def test_pending_migrations_are_waited_for(migrated: None) -> None:
    with spare_database(copied=True) as name, psycopg.connect(url_for(None, name), autocommit=True) as owner:
        first, last = sorted(
            owner.execute(
                "DELETE FROM django_migrations WHERE id IN"
                " (SELECT id FROM django_migrations WHERE app = 'salon_jobs' ORDER BY id DESC LIMIT 2) RETURNING name"
            ).fetchall()
        )
        applied = "INSERT INTO django_migrations (app, name, applied) VALUES ('salon_jobs', %s, now())"
        with WorkerProcess(url=url_for(WORKER, name), **FAST) as worker:
            worker.wait_for("waiting", code="WORKER.SCHEMA_MISSING", level="error")
            owner.execute(applied, first)
            worker.wait_for("waiting", code="WORKER.SCHEMA_MISSING", level="info")
            status, answer = worker.ask("/readyz")
            assert (status, answer["code"]) == (503, "WORKER.SCHEMA_MISSING")
            assert f"salon_jobs.{last[0]}" in answer["detail"]
            assert worker.ask("/healthz")[0] == 200
            owner.execute(applied, last)
            worker.wait_until_ready()
            owner.execute("ALTER TABLE salon_jobs_job RENAME TO elsewhere")
            eventually(lambda: worker.readiness().get("code"), "WORKER.SCHEMA_MISSING")
            owner.execute("ALTER TABLE elsewhere RENAME TO salon_jobs_job")
            worker.wait_until_ready()
            assert worker.end() == 0
            assert len(worker.logged("waiting", level="error")) == 1


def test_unknown_task_is_left_alone_and_shown(database: None) -> None:
    [(job_id,)] = seen("INSERT INTO salon_jobs_job (task) VALUES ('e2e-unheard-of') RETURNING id")
    with WorkerProcess(**FAST) as worker:
        warning = worker.wait_for("tasks_unknown", code="JOB.UNKNOWN_TASK", level="warning")
        assert warning["tasks"] == ["e2e-unheard-of"]
        assert "salon_jobs cancel --task" in warning["detail"]
        status, answer = worker.wait_until_ready().ask("/readyz")
        assert (status, answer["unknown_tasks"]) == (200, ["e2e-unheard-of"])
    row = row_of(job_id)
    assert (row["state"], row["attempts"], row["lease"]) == ("queued", 0, 0)


def test_burst_says_what_it_ran_and_left(database: None) -> None:
    """It counts its runs, and names tasks that nobody knows and a queue that no task has."""
    [(job_id,)] = seen("INSERT INTO salon_jobs_job (task) VALUES ('e2e-unheard-of') RETURNING id")
    tasks.nothing.enqueue()
    for arguments, runs in (("--queue", "defaul"), 0), ((), 1):
        with WorkerProcess("--burst", *arguments) as worker:
            assert worker.wait() == 0
            [ended] = worker.logged("burst_ended")
        assert ended["runs"] == runs
        assert ("queue 'defaul'; did you mean 'default'?; its queues: " in ended.get("detail", "")) == (runs == 0)
    assert [line["tasks"] for line in worker.logged("tasks_unknown")] == [["e2e-unheard-of"]]
    assert seen("SELECT id, state FROM salon_jobs_job") == [(job_id, "queued")]


def test_health_is_bound_to_loopback(database: None) -> None:
    with WorkerProcess() as worker:
        host, _, port = worker.address.partition(":")
        assert host == "127.0.0.1"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(port)), timeout=2)
        assert worker.ask("/elsewhere") == (
            404,
            {"status": "unknown path", "paths": ["/healthz", "/readyz", "/metrics"]},
        )
        assert worker.ask("/healthz?verbose=1")[0] == 200
        worker.wait_until_ready()
        status, answer = worker.ask("/readyz")
        assert (status, answer["status"], answer["kind"]) == (200, "ready", "supervisor")
        with WorkerProcess("--burst", "--health-addr", worker.address) as second:
            assert second.wait() == 1
            assert f"CommandError: WORKER.NOT_READY: cannot listen on {worker.address} for health" in second.output
            assert "Address already in use" in second.output
            assert "--health-addr" in second.output
            assert "Traceback" not in second.output


def test_user_without_policies_is_warned_of(database: None) -> None:
    with WorkerProcess(url=url_for(None), ROLES=None, OPERATOR_DATABASE=None, ON_DRIFT="ignore") as worker:
        worker.wait_for("process_started", kind="worker")
        [noticed] = worker.logged("role_noticed")
        assert "it sees the rows of all stores" in noticed["detail"]
        assert worker.end() == 0
