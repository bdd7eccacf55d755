"""Shows ``salon_jobs top``: one page for scripts, and the live view in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import time
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from tests.e2e.severing_proxy import SeveringProxy
from tests.interpreter import start_python
from tests.management.operator import add, insert, run
from tests.settings import url_for
from tests.waiting import eventually


def test_one_page_shows_what_waits_runs_and_fails(process_id: int) -> None:
    add(queue="night")
    add(state="running", leased_by=process_id, lease=1)
    failed = add(task="charge", state="failed", fingerprint=1, error_class="builtins.KeyError")
    insert("job_error", job_id=failed, attempt=1, error_class="", message="\x1b[2Jno such\ncard")
    insert("limit", kind="queue", name="night", paused=True)
    out = StringIO()
    with CaptureQueriesContext(connections["operator"]) as captured:
        call_command("salon_jobs", "top", stdout=out)
    page = out.getvalue()
    assert "queued 1, due 0, paused 1, oldest due" in page
    assert "paused: queue night" in page
    assert "running longest" in page
    assert r"KeyError: \x1b[2Jno such card" in page
    assert "\x1b" not in page, "what jobs say commands no terminal"
    assert len(captured.captured_queries) <= 12


def test_scripts_read_the_page_as_json(process_id: int) -> None:
    retried = add(state="running", leased_by=process_id, lease=1, started_at="now")
    longest = add(state="running", leased_by=process_id, lease=1, started_at="yesterday")
    failed = add(task="charge", state="failed", fingerprint=1, error_class="builtins.KeyError", finished_at="now")
    insert("limit", kind="queue", name="night", paused=True)
    page = json.loads(run("top", "--json")[0])
    assert page["paused"] == ["queue night"]
    assert [(kind["task"], kind["newest_id"]) for kind in page["failures"]] == [("charge", failed)]
    [process] = page["processes"]
    assert (process["silent"], [job["id"] for job in process["jobs"]]) == (False, [longest, retried])
    assert {"name", "depth", "in_a_minute", "failed"} < set(page["queues"][0])
    assert page["tasks"] == []


@pytest.mark.uuid_keys
def test_a_paused_store_is_named_by_its_id_where_nothing_may_read_its_name(stores: list[UUID], settings: Any) -> None:
    insert("limit", kind="store", name=str(stores[0]), paused=True)
    # The operator's role sees no row of a project's own tables.
    for unread in ({"DATABASE": "operator"}, {"STORE_MODEL": None, "MEMBERSHIP_MODEL": None}):
        with override_settings(SALON_JOBS={**settings.SALON_JOBS, **unread}):
            assert f"paused: store {stores[0]}" in run("top", "--once")[0], unread


class LiveView:
    """``salon_jobs top`` in a terminal of its own."""

    def __init__(self, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = start_python(
            *("manage.py", "salon_jobs", "top", "--every", "1s"),
            environment={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        self.drawn = b""
        self._theirs = theirs

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + 20
        while text not in self.drawn:
            assert time.monotonic() < deadline, self.drawn.decode(errors="replace")
            if select.select([self._ours], [], [], 0.2)[0]:
                self.drawn += os.read(self._ours, 65536)


def test_the_live_view_refreshes_and_ends_on_q_with_the_terminal_as_before(database: None) -> None:
    add(queue="first-queue")
    with LiveView(COLUMNS="120", LINES="40") as view:
        view.wait_for(b"first-queue")
        add(queue="second-queue")
        view.wait_for(b"second-queue")
        assert b"\x1b[?1049h" in view.drawn
        view.press(b"xq")
        view.wait_for(b"\x1b[?1049l")
        assert view.process.wait(30) == 0


@pytest.mark.slow
def test_the_live_view_ends_at_once_though_the_database_hangs(database: None) -> None:
    with SeveringProxy(url_for("jobs_operator")) as proxy, LiveView(OPERATOR_DATABASE_URL=proxy.url) as view:
        view.wait_for(b"jobs running")
        before = proxy.accepted
        proxy.hang()
        eventually(lambda: proxy.accepted > before)
        view.process.send_signal(signal.SIGINT)
        assert view.process.wait(30) == 0
        view.wait_for(b"\x1b[?25h\x1b[?1049l")
