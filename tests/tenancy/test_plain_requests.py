"""Requests of a project without stores, compared with the same of Django alone."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.interpreter import run_python
from tests.settings import url_for


def answer(installed: str, count: int) -> dict[str, Any]:
    environment = {**os.environ, "SITE_URL": url_for(None), "PYTHONPATH": "."}
    del environment["DJANGO_SETTINGS_MODULE"]
    done = run_python("tests/tenancy/plain_site.py", installed, str(count), environment=environment)
    assert done.returncode == 0, done.stderr
    answered: dict[str, Any] = json.loads(done.stdout)
    return answered


@pytest.mark.usefixtures("migrated")
def test_a_request_without_stores_costs_no_statement_runs_nothing_and_keeps_what_connecting_set() -> None:
    requests = 3
    session = ["eu", "5MB", 1, "{at_connect}", 1]
    for installed in ("django", "salon_jobs"):
        found = answer(installed, requests)
        assert (found["trips"], found["session"], found["ran"]) == (requests, session, []), installed
