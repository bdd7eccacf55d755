"""Shows that a web process refuses every role but those meant for it, at its start or at its first connection."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.settings import url_for

_CONNECT = "from django.db import connection; connection.ensure_connection(); print('served')"


def serve(**environment: str) -> subprocess.CompletedProcess[str]:
    """Load the WSGI application in a process of its own and connect, as a request would."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import project.wsgi; {_CONNECT}"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_web_and_operator_roles_are_served(migrated: None) -> None:
    done = serve(DATABASE_URL=url_for("app"), OPERATOR_DATABASE_URL=url_for("jobs_operator"))
    assert (done.returncode, done.stdout.strip()) == (0, "served"), done.stderr


@pytest.mark.parametrize("variable", ["DATABASE_URL", "OPERATOR_DATABASE_URL"])
@pytest.mark.parametrize("role", ["migrator", "worker_runtime", None], ids=str)
def test_any_other_role_is_refused(migrated: None, variable: str, role: str | None) -> None:
    done = serve(**{variable: url_for(role)})
    assert done.returncode != 0
    assert "ForbiddenRole" in done.stderr
    assert "served" not in done.stdout


def test_without_a_database_it_starts_and_the_first_connection_is_looked_at(migrated: None) -> None:
    done = serve(DATABASE_URL="postgresql://app:p@127.0.0.1:1/salon")
    assert "OperationalError" in done.stderr, "it came as far as the first request"
    late = (
        "import project.wsgi; from django.db import connection, connections;"
        f"connections.settings['default'].update(NAME='{url_for(None).rpartition('/')[2]}', USER='migrator',"
        " HOST=os.environ['H'], PORT=os.environ['P'], PASSWORD=os.environ['W']); connection.ensure_connection()"
    )
    server = url_for("migrator").rpartition("@")[2].partition("/")[0].partition(":")
    done = subprocess.run(
        [sys.executable, "-c", f"import os; {late}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "H": server[0],
            "P": server[2],
            "W": os.environ["MIGRATOR_PASSWORD"],
            "DATABASE_URL": "postgresql://app:p@127.0.0.1:1/salon",
        },
    )
    assert "ForbiddenRole" in done.stderr, done.stderr
