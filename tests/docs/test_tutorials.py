"""Follows the tutorials, step by step, as a reader with an empty folder and an empty database would."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from project.local.ports import free_port
from project.local.postgres import EmbeddedPostgres
from tests.docs.markdown import read
from tests.docs.walkthrough import Walkthrough, of_roles
from tests.settings import url_for


@pytest.fixture
def name() -> Iterator[str]:
    """Give a name for a database, and for a role; drops both where the tutorial made them."""
    name = f"salon_docs_{secrets.token_hex(4)}"
    yield name
    with psycopg.connect(url_for(None, "postgres"), autocommit=True) as connection:
        for statement in ("DROP DATABASE IF EXISTS {} WITH (FORCE)", "DROP ROLE IF EXISTS {}"):
            connection.execute(sql.SQL(statement).format(sql.Identifier(name)))


def shop(folder: Path, name: str, names: Mapping[str, str], **values: str) -> Walkthrough:
    """Return how to follow a tutorial whose database and role have this name."""
    url = url_for(None, name).replace(url_for(None, "").split("@")[0], f"postgresql://{name}:secret")
    return Walkthrough(
        folder=folder,
        superuser_url=url_for(None, "postgres"),
        database_url=url_for(None, name),
        names={"shopdb": name, **names},
        values={"DATABASE_URL": url, **values},
    )


def test_first_tutorial(tmp_path: Path, name: str) -> None:
    assert shop(tmp_path, name, {}).follow(read("docs/tutorial.md")) > 10


@pytest.mark.slow
def test_tutorial_with_stores(tmp_path: Path) -> None:
    # A server of its own: the roles are new there, as they are for the reader.
    with EmbeddedPostgres(fsync=False) as server:
        tutorial = of_roles(server.url, tmp_path, "chain", operator=False)
        assert tutorial.follow(read("docs/tutorial-tenants.md")) > 10


@pytest.fixture
def nats_folder(tmp_path: Path) -> Iterator[Path]:
    """Give a folder; ends the server that the tutorial started there, wherever it stopped being followed."""
    yield tmp_path
    if (pid := tmp_path / "nats.pid").exists():
        with suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_tutorial_of_outbox(nats_folder: Path, name: str) -> None:
    port = str(free_port())
    tutorial = shop(nats_folder, name, {"4222": port}, NATS_SERVER=f"nats://127.0.0.1:{port}")
    assert tutorial.follow(read("docs/tutorial-outbox.md")) > 15
