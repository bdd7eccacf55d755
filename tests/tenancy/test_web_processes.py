"""Web processes: which roles they refuse, and what a request costs in a project without stores."""

from __future__ import annotations

import json
import os

import pytest

from tests.interpreter import run_python
from tests.settings import url_for
from tests.tenancy.web import serve_process

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("migrated")]


def test_web_and_operator_roles_are_served() -> None:
    done = serve_process(DATABASE_URL=url_for("app"), OPERATOR_DATABASE_URL=url_for("jobs_operator"))
    assert (done.returncode, done.stdout.strip()) == (0, "served"), done.stderr


@pytest.mark.parametrize("role", ["migrator", "worker_runtime", None], ids=str)
@pytest.mark.parametrize("variable", ["DATABASE_URL", "OPERATOR_DATABASE_URL"])
def test_other_role_is_refused(variable: str, role: str | None) -> None:
    done = serve_process(**{variable: url_for(role)})
    assert done.returncode != 0
    assert "ForbiddenRole" in done.stderr
    assert "served" not in done.stdout


def test_first_connection_is_checked_after_start_without_database() -> None:
    nowhere = "postgresql://app:p@127.0.0.1:1/salon"
    assert "OperationalError" in serve_process(DATABASE_URL=nowhere).stderr, "it came as far as the first request"
    as_migrator = (
        "from environ import Env; from django.db import connection, connections;"
        "connections.settings['default'].update(Env.db_url_config(Env().str('LATER'))); connection.ensure_connection()"
    )
    done = serve_process(as_migrator, DATABASE_URL=nowhere, LATER=url_for("migrator"))
    assert "ForbiddenRole" in done.stderr, done.stderr


def test_request_without_stores_costs_nothing() -> None:
    """It sends no statement of ours, runs nothing of ours and keeps what connecting set, as with Django alone."""
    environment = {**os.environ, "SITE_URL": url_for(None), "PYTHONPATH": "."}
    del environment["DJANGO_SETTINGS_MODULE"]
    for installed in ("django", "salon_jobs"):
        done = run_python("tests/tenancy/plain_site.py", installed, "3", environment=environment)
        assert done.returncode == 0, done.stderr
        session = ["eu", "5MB", 1, "{at_connect}", 1]
        assert json.loads(done.stdout) == {"trips": 3, "session": session, "ran": []}, installed
