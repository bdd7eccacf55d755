"""Asks a web process for its health, as the web role, with the job tables there and not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.databases import spare_database
from tests.interpreter import manage
from tests.settings import PASSWORD, url_for
from tests.support import closed_port

pytestmark = pytest.mark.process
ASK = (
    "import json; from django.test import Client; "
    "answer = Client().get('/health/', {'format': '%s'} if '%s' else {}, headers={'host': 'localhost'}); "
    "print(json.dumps([answer.status_code, answer.headers['Cache-Control'], answer.content.decode()]))"
)


def health(url: str, kind: str = "json") -> tuple[int, str, Any]:
    """Ask within a process of its own, which has this one URL; returns status, caching and body."""
    done = manage("shell", "-c", ASK % (kind, kind), DATABASE_URL=url)
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    status, caching, text = json.loads(done.stdout.splitlines()[-1])
    return status, caching, json.loads(text) if kind == "json" else text


def test_web_process_is_healthy(migrated: None) -> None:
    status, caching, body = health(url_for("app"))
    assert (status, body) == (200, {"JobTables()": "OK"})
    assert "no-store" in caching


@pytest.mark.parametrize("kind", ["", "text"])
def test_silent_database_is_503(migrated: None, kind: str) -> None:
    """In every format, with its code."""
    with closed_port() as port:
        status, _, body = health(f"postgresql://app:{PASSWORD}@127.0.0.1:{port}/x", kind)
    assert status == 503
    assert "WORKER.NOT_READY" in body
    assert "127.0.0.1" not in body, "the answer may be public"


def test_missing_job_tables_are_503(migrated: None) -> None:
    with spare_database(copied=False) as empty:
        status, _, body = health(url_for("app", empty))
    assert (status, body) == (503, {"JobTables()": "Unavailable: WORKER.SCHEMA_MISSING"})
