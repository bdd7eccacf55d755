"""Runs docker/compose.yaml: rights, health, the demo with everything killed once, and an upload over HTTP."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from azure.storage.queue import QueueClient
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from project.demo.steps import WAITING
from project.demo.verify import Verifier
from project.demo.verify_messages import MessageVerifier, UploadVerifier
from project.demo.worker_log import WorkerLog
from project.local.nats import NatsServer
from project.local.smtp import LocalSmtp
from project.salon.demo_data import load, make_demo_data
from project.salon.demo_instants import DemoInstants
from tests.demo.conftest import succeeded
from tests.deployment.compose import RUNTIMES, SERVICES
from tests.image.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.image
OURS = ("web", *RUNTIMES)
RUNNING = [name for name, service in SERVICES.items() if "restart" in service]
DEMO = {"DJANGO_SETTINGS_MODULE": "project.demo.settings"}
PASSWORD = "a password for this test"
STORES = 40
PATIENCE_S = 180
# One job for each message; those that failed are left, and those that succeeded are not.
UNDONE = """
    SELECT j.id, j.task, j.state, j.reason, j.attempts, j.rescues, j.payload, e.error_class, e.message
      FROM salon_jobs_job j LEFT JOIN salon_jobs_job_error e ON e.job_id = j.id WHERE j.state <> 'succeeded'
"""
TAKEN = "SELECT consumer, count(DISTINCT job_id) FROM salon_jobs_inbox GROUP BY consumer"


@contextmanager
def superuser(stack: Stack) -> Iterator[psycopg.Connection[Any]]:
    environment = stack.services["bootstrap"]["environment"]
    url = environment["DATABASE_URL_BOOTSTRAP"].replace("@postgres:", f"@{stack.podman.address('postgres')}:")
    with psycopg.connect(url, autocommit=True, options="-c timezone=UTC") as connection:
        yield connection


def kill(stack: Stack, *names: str) -> None:
    """Kill services at the same time, and wait until all are restarted and healthy."""
    restarts = {name: int(stack.podman.inspect(name, "RestartCount")) for name in names}
    for name in names:
        stack.kill(name)
    for name in names:
        stack.wait_until_healthy(name, restarts=restarts[name] + 1)


@pytest.mark.parametrize("name", OURS)
def test_service_is_unprivileged(stack: Stack, name: str) -> None:
    stack.wait_until_healthy(name)
    status = dict(re.findall(r"^(\w+):\s+(.*)$", stack.execute(name, "cat", "/proc/1/status"), re.MULTILINE))
    assert {status[each] for each in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert set(status["Uid"].split()) == {"10001"}
    for folder in ("/app", "/opt/venv", "/etc", "/home"):
        assert "Read-only file system" in stack.execute(name, "sh", "-c", f"touch {folder}/new 2>&1 || true")
    stack.execute(name, "touch", "/tmp/new")


def test_everything_is_done_whatever_is_killed(stack: Stack, tmp_path: Path) -> None:
    for name in RUNNING:
        stack.wait_until_healthy(name)
    with superuser(stack) as connection:
        instants = DemoInstants.at(connection.execute("SELECT now()").fetchall()[0][0])
        data = make_demo_data(instants, stores=STORES)
        # A tick of tonight that the scheduler has fired before there were rows is to fire for them.
        connection.execute("DELETE FROM salon_jobs_cron_tick")
        load(connection, data)
        Verifier(connection, instants).prepare(())
    stores = [text for record in data.records("store") for text in ("--store", str(record["id"]))]
    with ThreadPoolExecutor(2) as threads:
        writing = [
            threads.submit(stack.run, "web", command, *stores, environment=DEMO)
            for command in ("confirm_reservations", "upload_files")
        ]
        kill(stack, "relay", "consumer")
        kill(stack, "nats", "worker")
        confirmed, uploaded = (list(map(int, each.result().split())) for each in writing)
    for tick in instants.ticks:
        stack.run("scheduler", "runscheduler", "--burst", "--at", tick.astimezone(UTC).isoformat(), environment={})
    kill(stack, *OURS, "postgres")

    with superuser(stack) as connection:
        try:
            eventually(lambda: connection.execute(WAITING).fetchall(), [(0,)], limit_s=PATIENCE_S)
        except AssertionError as error:
            raise AssertionError("\n".join(f"{name}:\n{stack.logs(name)[-2000:]}" for name in OURS)) from error
        jobs = {consumer: succeeded(count) for consumer, count in connection.execute(TAKEN)}
        with closing(NatsServer()) as reader, closing(LocalSmtp()) as smtp:
            reader.url = f"nats://{stack.podman.address('nats')}:4222"
            messages = MessageVerifier(connection, reader.messages("reservations"), jobs["confirmations"])
            uploads = UploadVerifier(connection, jobs["uploads"], left=_left(stack))
            found = Verifier(connection, instants).problems((), smtp, WorkerLog(tmp_path / "of nobody"))
            problems = [*found, *messages.problems(), *uploads.problems()]
            told = [str(problem) for problem in problems if "no job of" not in problem.what]
            assert not told, "\n".join([*told, *map(str, connection.execute(UNDONE))])
            assert messages.figures(confirmed=confirmed[0], rolled_back=0, waited=0).jobs == confirmed[0] > 0
            assert uploads.figures(uploaded=uploaded[0], rolled_back=0).jobs == uploaded[0] > 0


def test_upload_after_everything_was_killed(stack: Stack) -> None:
    kill(stack, *RUNNING)
    store = str(uuid4())
    with superuser(stack) as connection:
        connection.execute("INSERT INTO store (id, name) VALUES (%s, 'Salon')", [store])
    stack.run("migrate", "create_demo_operator", "operator", environment={}, stdin=f"{PASSWORD}\n")
    stack.run("web", "join_store", "operator", store, environment={})
    web = Browser(f"http://{stack.podman.published('web')}")
    web.log_in("operator", PASSWORD)
    assert "Site administration" in web.get("/admin/")
    assert "body {" in web.get("/static/admin/css/base.css")
    task = json.loads(web.post("/files/", {"file": SimpleUploadedFile("sales.txt", b"100\n20\n")}))
    assert task["status"] == "PENDING"

    def ended() -> bool:
        shown = json.loads(web.get(f"/files/tasks/{task['task_id']}/"))
        assert shown["status"] in ("PENDING", "RUNNING", "SUCCEEDED"), shown
        return bool(shown == {**task, "status": "SUCCEEDED", "lines": 2, "total": 120})

    eventually(ended, limit_s=PATIENCE_S)


class Browser:
    """Client of the web process that keeps cookies and sends the token that forms have."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._cookies = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))

    def get(self, path: str) -> str:
        return self._send(urllib.request.Request(self._site + path))

    def post(self, path: str, fields: dict[str, Any]) -> str:
        token = next(cookie.value for cookie in self._cookies if cookie.name == "csrftoken")
        headers = {"X-CSRFToken": token or "", "Content-Type": MULTIPART_CONTENT}
        return self._send(urllib.request.Request(self._site + path, encode_multipart(BOUNDARY, fields), headers))

    def log_in(self, name: str, password: str) -> None:
        self.get("/admin/login/")
        self.post("/admin/login/?next=/admin/", {"username": name, "password": password})

    def _send(self, request: urllib.request.Request) -> str:
        with self._opener.open(request, timeout=30) as answer:
            text: str = answer.read().decode()
            return text


def _left(stack: Stack) -> int:
    """Return how many messages the queue of uploads still holds."""
    connection_string = stack.services["relay"]["environment"]["AZURE_STORAGE_CONNECTION_STRING"]
    here = connection_string.replace("//azurite:", f"//{stack.podman.address('azurite')}:")
    with QueueClient.from_connection_string(here, "parse-tasks") as queue:
        return queue.get_queue_properties().approximate_message_count or 0
