"""Tests what a worker process answers and refuses while database, role or tables are not as they should be."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from project.local.ports import free_port
from project.local.postgres import EmbeddedPostgres
from tests.conftest import manage
from tests.e2e import tasks
from tests.e2e.severing_proxy import SeveringProxy
from tests.e2e.stubborn import spare_database
from tests.e2e.worker_process import WorkerProcess
from tests.metrics import of, scraped
from tests.settings import PASSWORD, url_for
from tests.support import change, freeze, job_row, seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("stubborn")
WORKER = "worker_runtime"
FAST: dict[str, Any] = {"POLL_INTERVAL": 0.2}


def enqueue(url: str, task: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("INSERT INTO salon_jobs_job (task) VALUES (%s) RETURNING id", [task]).fetchone()
        assert row is not None
        return int(row[0])


def test_gwt_03_a_database_that_goes_away_and_comes_back(migrated: None) -> None:
    with EmbeddedPostgres(fsync=False) as server:
        host = server.url.rpartition("@")[2].partition("/")[0]
        superuser = server.url.rpartition("/")[0] + "/salon"
        migrator, worker_url = (f"postgresql://{role}:{PASSWORD}@{host}/salon" for role in ("migrator", WORKER))
        for done in (
            manage("bootstrap_roles", "--database", "salon", DATABASE_URL_BOOTSTRAP=server.url),
            manage("migrate", "--verbosity", "0", DATABASE_URL_MIGRATOR=migrator),
        ):
            assert done.returncode == 0, done.stderr
        server.stop()
        with WorkerProcess(url=worker_url, **FAST) as worker:
            worker.wait_for("waiting", code="WORKER.NOT_READY")
            assert worker.ask("/healthz") == (200, {"status": "ok"})
            status, answer = worker.ask("/readyz")
            assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
            server.start()
            worker.wait_until_ready()
            worker.wait_for("job_succeeded", job_id=enqueue(superuser, "ping"))
            server.stop()
            assert worker.ask("/healthz")[0] == 200
            status, answer = worker.ask("/readyz")
            assert (status, answer["code"]) == (503, "WORKER.NOT_READY")
            worker.wait_for("database_lost", loop="claim")
            # What is ill is not asked: the metrics are there, and say how old they are.
            at = worker.wait_for("health_listening")["address"]
            eventually(lambda: of(scraped(at), "finished_total", task="ping", outcome="succeeded"), 1)
            eventually(lambda: of(scraped(at), "loop_age_seconds", loop="claim") > 1)
            server.start()
            worker.wait_for("job_succeeded", job_id=enqueue(superuser, "ping"))
            worker.wait_until_ready()
            assert worker.end() == 0
            assert PASSWORD not in worker.output


def test_a_database_that_hangs_is_reported_at_once_by_all_that_need_it(migrated: None) -> None:
    with (
        SeveringProxy(url_for(WORKER)) as proxy,
        WorkerProcess(url=proxy.url, **FAST, PATCHES={"salon_jobs.conf.Settings.stale_after_s": 2}) as worker,
        psycopg.connect(url_for(None)) as owner,
    ):
        at = worker.wait_until_ready().wait_for("health_listening")["address"]
        proxy.hang()
        assert worker.ask("/readyz")[0] == 503
        before, began = proxy.accepted, time.monotonic()
        with ThreadPoolExecutor(5) as probes:
            answers = list(probes.map(worker.ask, ["/readyz"] * 5))
        assert time.monotonic() - began < 8
        assert {(status, said["code"]) for status, said in answers} == {(503, "WORKER.NOT_READY")}
        assert all("the database does not answer: asked" in said["detail"] for _, said in answers)
        assert proxy.accepted == before, "however often it is asked"
        eventually(lambda: of(scraped(at), "ready", kind="supervisor"), 0)
        assert of(scraped(at), "loop_age_seconds", loop="claim") > 2, "served while it is not ready, too"
        proxy.go_on()
        worker.wait_until_ready()
        # The heartbeat may go on while claims hang: it must not call itself ready.
        owner.execute("SELECT FROM salon_jobs_process FOR NO KEY UPDATE")
        eventually(lambda: "no heartbeat was written" in worker.ask("/readyz")[1].get("detail", ""))
        owner.rollback()
        [child] = worker.wait_until_ready().children()
        freeze(child["pid"])
        eventually(lambda: "runs nothing and says nothing" in worker.ask("/readyz")[1].get("detail", ""))
        os.kill(child["pid"], signal.SIGCONT)
        worker.wait_until_ready()
    change("DELETE FROM salon_jobs_process")


def test_gwt_11_only_the_worker_role_may_work(migrated: None) -> None:
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


def test_a_burst_says_at_once_what_is_wrong(migrated: None) -> None:
    with spare_database(copied=False) as empty:
        urls = {
            url_for(WORKER, "absent"): ("WORKER.NOT_READY", '"absent" does not exist'),
            f"postgresql://{WORKER}:x@127.0.0.1:{free_port()}/x": ("WORKER.NOT_READY", "refused"),
            url_for(WORKER).replace(PASSWORD, "wrong"): ("WORKER.NOT_READY", "password"),
            url_for(WORKER, empty): ("WORKER.SCHEMA_MISSING", "python manage.py migrate"),
        }
        workers = {url: WorkerProcess("--burst", url=url) for url in urls}
        for url, (code, words) in urls.items():
            with workers[url] as worker:
                assert worker.wait() == 1
                assert code in worker.output
                assert words in worker.output
                assert "Traceback" not in worker.output


def test_a_malformed_listen_url_is_named_and_not_shown() -> None:
    with WorkerProcess(url=url_for(WORKER), LISTEN="postgresql//u:secret@h/x") as worker:
        assert worker.wait() == 1
        assert "SALON_JOBS['LISTEN'] must be True, False or a URL such as postgresql://" in worker.output
        assert "secret" not in worker.output


def test_pending_migrations_are_waited_for_and_named(migrated: None) -> None:
    with spare_database(copied=True) as name, psycopg.connect(url_for(None, name), autocommit=True) as owner:
        row = owner.execute(
            "DELETE FROM django_migrations WHERE id = (SELECT max(id) FROM django_migrations WHERE app = 'salon_jobs')"
            " RETURNING name"
        ).fetchone()
        assert row is not None
        with WorkerProcess(url=url_for(WORKER, name), **FAST) as worker:
            worker.wait_for("waiting", code="WORKER.SCHEMA_MISSING")
            status, answer = worker.ask("/readyz")
            assert (status, answer["code"]) == (503, "WORKER.SCHEMA_MISSING")
            assert f"salon_jobs.{row[0]}" in answer["detail"]
            assert worker.ask("/healthz")[0] == 200
            owner.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('salon_jobs', %s, now())", row)
            worker.wait_until_ready()
            owner.execute("ALTER TABLE salon_jobs_job RENAME TO elsewhere")
            eventually(lambda: worker.ask("/readyz")[1].get("code"), "WORKER.SCHEMA_MISSING")
            owner.execute("ALTER TABLE elsewhere RENAME TO salon_jobs_job")
            worker.wait_until_ready()
            assert worker.end() == 0


def test_a_task_that_nobody_knows_is_left_alone_and_shown(database: None) -> None:
    [(job_id,)] = seen("INSERT INTO salon_jobs_job (task) VALUES ('e2e-unheard-of') RETURNING id")
    with WorkerProcess(url=url_for(WORKER), **FAST) as worker:
        warning = worker.wait_for("tasks_unknown")
        assert (warning["code"], warning["tasks"], warning["level"]) == (
            "JOB.UNKNOWN_TASK",
            ["e2e-unheard-of"],
            "warning",
        )
        assert "salon_jobs cancel --task" in warning["detail"]
        status, answer = worker.wait_until_ready().ask("/readyz")
        assert (status, answer["unknown_tasks"]) == (200, ["e2e-unheard-of"])
        row = job_row(job_id)
        assert row is not None
        assert (row["state"], row["attempts"], row["lease"]) == ("queued", 0, 0)


def test_a_burst_says_which_due_jobs_it_left(database: None) -> None:
    [(job_id,)] = seen("INSERT INTO salon_jobs_job (task) VALUES ('e2e-unheard-of') RETURNING id")
    with WorkerProcess("--burst", url=url_for(WORKER)) as worker:
        assert worker.wait() == 0
        assert [line["tasks"] for line in worker.logged("tasks_unknown")] == [["e2e-unheard-of"]]
    row = job_row(job_id)
    assert row is not None
    assert row["state"] == "queued"


def test_a_burst_says_how_many_jobs_it_ran_and_names_a_queue_that_no_task_has(database: None) -> None:
    tasks.nothing.enqueue()
    for arguments, runs in (("--queue", "defaul"), 0), ((), 1):
        with WorkerProcess("--burst", *arguments, url=url_for(WORKER)) as worker:
            assert worker.wait() == 0
            [ended] = worker.logged("burst_ended")
        assert ended["runs"] == runs
        assert ("queue 'defaul'; did you mean 'default'?; its queues: " in ended.get("detail", "")) == (runs == 0)


def test_health_is_bound_to_loopback_and_knows_three_paths(database: None) -> None:
    with WorkerProcess(url=url_for(WORKER)) as worker:
        address: str = worker.wait_for("health_listening")["address"]
        host, _, port = address.partition(":")
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
        with WorkerProcess("--burst", "--health-addr", address, url=url_for(WORKER)) as second:
            assert second.wait() == 1
            assert f"CommandError: WORKER.NOT_READY: cannot listen on {address} for health" in second.output
            assert "Address already in use" in second.output
            assert "--health-addr" in second.output
            assert "Traceback" not in second.output
    change("DELETE FROM salon_jobs_process")


def test_one_database_user_that_no_policy_binds_is_warned_of(database: None) -> None:
    with WorkerProcess(url=url_for(None), ROLES=None, OPERATOR_DATABASE=None, ON_DRIFT="ignore") as worker:
        worker.wait_for("process_started", kind="worker")
        [noticed] = worker.logged("role_noticed")
        assert "it sees the rows of all stores" in noticed["detail"]
        worker.stop()
        assert worker.wait() == 0
