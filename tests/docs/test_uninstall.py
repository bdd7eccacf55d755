"""Leaves a server as the page on uninstalling says, and empties a copy as the page on several databases does."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from tests.docs.markdown import blocks, read
from tests.docs.walkthrough import of_roles
from tests.interpreter import succeed


def statements(page: str, action: str) -> str:
    [block] = [block for block in blocks(read(page)) if block.action == action]
    return block.text


@pytest.mark.slow
def test_uninstall_leaves_nothing_on_server(tmp_path: Path) -> None:
    with EmbeddedPostgres(fsync=False) as server:
        given = of_roles(server.url, tmp_path, "salon")
        succeed("bootstrap_roles", "--database", "salon", **given.values)
        succeed("migrate", "--verbosity", "0", **given.values)
        with psycopg.connect(given.database_url, autocommit=True) as connection:
            connection.execute(statements("docs/how-to/several-databases.md", "on the copy").encode())
            for app in ("salon", "salon_jobs"):
                succeed("migrate", app, "zero", "--verbosity", "0", **given.values)
            for statement in statements("docs/how-to/uninstall.md", "as a superuser").split(";"):
                connection.execute(statement.encode())
            roles = {name for (name,) in connection.execute("SELECT rolname FROM pg_roles").fetchall()}
            assert {"app", "migrator", "postgres"} <= roles
            assert not {"worker_runtime", "jobs_operator", "worker_fanout_owner"} & roles
            left = connection.execute(
                "SELECT relname FROM pg_class WHERE relname ~ '^salon_jobs' UNION ALL"
                " SELECT proname FROM pg_proc WHERE proname ~ 'salon_jobs|pgtrigger|fan_out'"
            )
            assert left.fetchall() == []
