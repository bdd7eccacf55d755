"""A web process refuses every role but those meant for it, at its start or at its first connection."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.interpreter import run_python
from tests.settings import url_for

_PROGRAM = "import warnings; warnings.simplefilter('error'); import project.wsgi; "
_CONNECT = "from django.db import connection; connection.ensure_connection(); print('served')"


def serve(first_request: str = _CONNECT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Load the WSGI application in a process of its own and connect, as a request would."""
    surroundings = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment}
    return run_python("-c", _PROGRAM + first_request, environment=surroundings, timeout_s=60)


def test_the_web_and_operator_roles_are_served(migrated: None) -> None:
    done = serve(DATABASE_URL=url_for("app"), OPERATOR_DATABASE_URL=url_for("jobs_operator"))
    assert (done.returncode, done.stdout.strip()) == (0, "served"), done.stderr


@pytest.mark.parametrize("role", ["migrator", "worker_runtime", None], ids=str)
@pytest.mark.parametrize("variable", ["DATABASE_URL", "OPERATOR_DATABASE_URL"])
def test_any_other_role_is_refused(migrated: None, variable: str, role: str | None) -> None:
    done = serve(**{variable: url_for(role)})
    assert done.returncode != 0
    assert "ForbiddenRole" in done.stderr
    assert "served" not in done.stdout


def test_without_a_database_it_starts_and_checks_the_first_connection(migrated: None) -> None:
    nowhere = "postgresql://app:p@127.0.0.1:1/salon"
    assert "OperationalError" in serve(DATABASE_URL=nowhere).stderr, "it came as far as the first request"
    as_migrator = (
        "from environ import Env; from django.db import connection, connections;"
        "connections.settings['default'].update(Env.db_url_config(Env().str('LATER'))); connection.ensure_connection()"
    )
    done = serve(as_migrator, DATABASE_URL=nowhere, LATER=url_for("migrator"))
    assert "ForbiddenRole" in done.stderr, done.stderr
