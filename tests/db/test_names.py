"""Names by which the server knows the connections of programs that are no process of ours."""

from __future__ import annotations

import sys

import pytest
from django.db import connections
from django.test import override_settings

from salon_jobs.db.connections import name_program
from tests.settings import SALON_JOBS
from tests.support import seen


def name_seen_by_server(alias: str) -> str:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        return str(cursor.fetchone()[0])


@pytest.mark.usefixtures("database")
@override_settings(SALON_JOBS={**SALON_JOBS, "DATABASE": "web", "OPERATOR_DATABASE": "operator"})
def test_connections_are_named_after_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for the session that holds a lock then knows where; a name that the project gives stays."""
    monkeypatch.setattr(sys, "argv", ["/srv/venv/bin/gunicorn", "shop.wsgi", "--workers", "4"])
    for alias, options in (("web", {}), ("operator", {"application_name": "staff"})):
        monkeypatch.setitem(connections.settings[alias], "OPTIONS", options)
        monkeypatch.setitem(connections[alias].settings_dict, "OPTIONS", connections.settings[alias]["OPTIONS"])
        connections[alias].close()
    name_program()
    assert (name_seen_by_server("web"), name_seen_by_server("operator")) == ("gunicorn", "staff")
    monkeypatch.setattr(sys, "argv", ["manage.py", "runserver", "--secret"])
    del connections.settings["web"]["OPTIONS"]["fallback_application_name"]
    connections["web"].close()
    name_program()
    assert name_seen_by_server("web") == "manage.py runserver"
    for alias in ("web", "operator"):
        connections[alias].close()
    assert seen("SELECT 1") == [(1,)]
