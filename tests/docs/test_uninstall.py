"""Leaves a server as the page on uninstalling says, and empties a copy as the page on several databases does."""

from __future__ import annotations

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from tests.databases import URLS
from tests.docs.markdown import blocks, read
from tests.interpreter import succeed
from tests.settings import PASSWORD, url_for


def statements(page: str, action: str) -> str:
    [block] = [block for block in blocks(read(page)) if block.action == action]
    return block.text


@pytest.mark.slow
def test_nothing_of_salon_jobs_is_left_on_a_server() -> None:
    with EmbeddedPostgres(fsync=False) as server:
        names = ("MIGRATOR_PASSWORD", "APP_PASSWORD", "WORKER_RUNTIME_PASSWORD", "JOBS_OPERATOR_PASSWORD")
        environment = {
            "DATABASE_URL_BOOTSTRAP": server.url,
            **{name: url_for(role, "salon", server=server.url) for name, role in URLS.items()},
            **dict.fromkeys(names, PASSWORD),
        }
        succeed("bootstrap_roles", "--database", "salon", **environment)
        succeed("migrate", "--verbosity", "0", **environment)
        with psycopg.connect(url_for(None, "salon", server=server.url), autocommit=True) as connection:
            connection.execute(statements("docs/how-to/several-databases.md", "on the copy").encode())
            for app in ("salon", "salon_jobs"):
                succeed("migrate", app, "zero", "--verbosity", "0", **environment)
            for statement in statements("docs/how-to/uninstall.md", "as a superuser").split(";"):
                connection.execute(statement.encode())
            roles = connection.execute("SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_' ORDER BY 1").fetchall()
            assert {"app", "migrator", "postgres"} <= {name for (name,) in roles}
            assert not {"worker_runtime", "jobs_operator", "worker_fanout_owner"} & {name for (name,) in roles}
            left = connection.execute(
                "SELECT relname FROM pg_class WHERE relname ~ '^salon_jobs' UNION ALL"
                " SELECT proname FROM pg_proc WHERE proname ~ 'salon_jobs|pgtrigger|fan_out'"
            )
            assert left.fetchall() == []
