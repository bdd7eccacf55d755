"""Follows the tutorials, step by step, as a reader with an empty folder and an empty database would."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from project.local.ports import free_port
from project.local.postgres import EmbeddedPostgres
from tests.docs.markdown import read
from tests.docs.walkthrough import Walkthrough
from tests.settings import PASSWORD, url_for


@pytest.fixture
def name() -> Iterator[str]:
    """Give a name for a database, and for a role; drops both where the tutorial made them."""
    name = f"salon_docs_{secrets.token_hex(4)}"
    yield name
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as connection:
        for statement in ("DROP DATABASE IF EXISTS {} WITH (FORCE)", "DROP ROLE IF EXISTS {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


def test_the_first_tutorial(tmp_path: Path, name: str) -> None:
    url = url_for(None, name).replace(url_for(None, "").split("@")[0], f"postgresql://{name}:secret")
    tutorial = Walkthrough(
        folder=tmp_path,
        superuser_url=url_for(None, "postgres"),
        database_url=url_for(None, name),
        names={"shopdb": name},
        values={"DATABASE_URL": url},
    )

    assert tutorial.follow(read("docs/tutorial.md")) > 10


@pytest.mark.slow
def test_the_tutorial_with_stores(tmp_path: Path) -> None:
    passwords = ("MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD", "JOBS_OPERATOR_PASSWORD")
    # A server of its own: the roles are new there, as they are for the reader.
    with EmbeddedPostgres(fsync=False) as server:
        tutorial = Walkthrough(
            folder=tmp_path,
            superuser_url=server.url,
            database_url=url_for(None, "chain", server=server.url),
            names={},
            values={
                "DATABASE_URL_BOOTSTRAP": server.url,
                **dict.fromkeys(passwords, PASSWORD),
                "DATABASE_URL_MIGRATOR": url_for("migrator", "chain", server=server.url),
                "DATABASE_URL": url_for("app", "chain", server=server.url),
                "WORKER_DATABASE_URL": url_for("worker_runtime", "chain", server=server.url),
            },
        )

        assert tutorial.follow(read("docs/tutorial-tenants.md")) > 10


@pytest.fixture
def nats_folder(tmp_path: Path) -> Iterator[Path]:
    """Give a folder; ends the server that the tutorial started there, wherever it stopped being followed."""
    yield tmp_path
    if (pid := tmp_path / "nats.pid").exists():
        with suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_the_tutorial_of_the_outbox(nats_folder: Path, name: str) -> None:
    port = str(free_port())
    tutorial = Walkthrough(
        folder=nats_folder,
        superuser_url=url_for(None, "postgres"),
        database_url=url_for(None, name),
        names={"shopdb": name, "4222": port},
        values={
            "DATABASE_URL": url_for(None, name).replace(url_for(None, "").split("@")[0], f"postgresql://{name}:secret"),
            "NATS_SERVER": f"nats://127.0.0.1:{port}",
        },
    )

    assert tutorial.follow(read("docs/tutorial-outbox.md")) > 15
