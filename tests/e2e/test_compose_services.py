"""Tests the services of docker/compose.yaml without containers: each has what the file gives it, and no more."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from project.local.nats import NatsServer
from tests.deployment.compose import RUNTIMES, SERVICES
from tests.e2e.worker_process import WorkerProcess, inherited
from tests.interpreter import run_command
from tests.servers.azure import AzureBroker
from tests.settings import PASSWORD, url_for

_STORE = "00000000-0000-4000-8000-000000000001"


class Service(WorkerProcess):
    """Is one service, started as the image would."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self._start(["manage.py", *words], {**inherited(), **environment})


@pytest.fixture
def name() -> Iterator[str]:
    """Create the database that POSTGRES_DB names, and drop it."""
    name = f"salon_compose_{secrets.token_hex(4)}"
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.slow
def test_services_work_with_what_they_are_given(name: str) -> None:
    with ExitStack() as stack:
        nats, azure = stack.enter_context(NatsServer()), stack.enter_context(closing(AzureBroker()))
        azure.start()
        here = {
            "postgresql://postgres:a@postgres:5432/salon": url_for(None, name),
            "@postgres:5432/salon": f"@{urlsplit(url_for(None)).netloc.rpartition('@')[2]}/{name}",
            "nats://nats:4222": nats.url,
            "http://azurite:10001": re.findall("http://[^/;]+", azure.connection_string)[0],
        }
        given = {"POSTGRES_PASSWORD": "a", "AZURITE_KEY": azure.key, "SECRET_KEY": "s"}

        def environment(service: str) -> dict[str, str]:
            values: dict[str, str] = {}
            for variable, text in SERVICES[service]["environment"].items():
                required = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: given.get(found[1], PASSWORD), text)
                value = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", required)
                for there, ours in here.items():
                    value = value.replace(there, ours)
                values[variable] = value
            return values

        for service in ("queues", "bootstrap", "migrate"):
            definition = SERVICES[service]
            words = [*(["manage.py"] if "entrypoint" not in definition else []), *definition["command"]]
            if service == "bootstrap":  # the test's server, unlike the service's own, has other databases
                words.append("--share-roles")
            _run([sys.executable, *words], environment(service))
        _run([sys.executable, "-c", "import project.wsgi"], environment("web"))
        running: dict[str, Service] = {}
        for service, port in RUNTIMES.items():
            words = [word.replace(f"0.0.0.0:{port}", "127.0.0.1:0") for word in SERVICES[service]["command"]]
            running[service] = stack.enter_context(Service(words, environment(service)))
        for process in running.values():
            process.wait_until_ready()
        with psycopg.connect(url_for(None, name)) as connection:
            connection.execute("INSERT INTO store (id, name) VALUES (%s, 'Salon')", [_STORE])
        web = {**environment("web"), "DJANGO_SETTINGS_MODULE": "project.demo.settings"}
        _run([sys.executable, "manage.py", "upload_files", "--store", _STORE], web)
        running["consumer"].wait_for("messages_taken", enqueued=1)
        running["worker"].wait_for("job_succeeded", task_name="parse-upload")
        for process in running.values():
            process.stop()
        assert {service: process.wait() for service, process in running.items()} == dict.fromkeys(running, 0)


def _run(words: list[str], environment: dict[str, str]) -> None:
    done = run_command(*words, environment={"PATH": "/usr/bin:/bin", **environment})
    assert done.returncode == 0, done.stderr
