"""Shows ``salon_jobs top``: one page for scripts, and the live view in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from tests.e2e.severing_proxy import SeveringProxy
from tests.interpreter import start_python
from tests.management.operator import add, insert, run
from tests.settings import url_for
from tests.waiting import LIMIT_S, eventually


def test_top_shows_queued_running_and_failed(process_id: int) -> None:
    add(queue="night")
    add(state="running", leased_by=process_id, lease=1)
    failed = add(task="charge", state="failed", fingerprint=1, error_class="builtins.KeyError")
    insert("job_error", job_id=failed, attempt=1, error_class="", message="\x1b[2Jno such\ncard")
    insert("limit", kind="queue", name="night", paused=True)
    with CaptureQueriesContext(connections["operator"]) as captured:
        page = run("top")[0]
    assert "queued 1, due 0, paused 1, oldest due" in page
    assert "paused: queue night" in page
    assert "running longest" in page
    assert r"KeyError: \x1b[2Jno such card" in page
    assert "\x1b" not in page, "what jobs say commands no terminal"
    assert len(captured.captured_queries) <= 21


def test_top_as_json(process_id: int) -> None:
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
def test_unreadable_store_is_shown_by_id(stores: list[UUID], settings: Any) -> None:
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
        def look() -> bool:
            if select.select([self._ours], [], [], 0)[0]:
                self.drawn += os.read(self._ours, 65536)
            return text in self.drawn

        eventually(look, what=lambda: self.drawn.decode(errors="replace"))


@pytest.mark.process
def test_live_view_refreshes_and_quits(database: None) -> None:
    add(queue="first-queue")
    with LiveView(COLUMNS="120", LINES="40") as view:
        view.wait_for(b"first-queue")
        add(queue="second-queue")
        view.wait_for(b"second-queue")
        assert b"\x1b[?1049h" in view.drawn
        view.press(b"xq")
        view.wait_for(b"\x1b[?1049l")
        assert view.process.wait(LIMIT_S) == 0


@pytest.mark.process
@pytest.mark.slow
def test_live_view_quits_though_database_hangs(database: None) -> None:
    with SeveringProxy(url_for("jobs_operator")) as proxy, LiveView(OPERATOR_DATABASE_URL=proxy.url) as view:
        view.wait_for(b"jobs running")
        before = proxy.accepted
        proxy.hang()
        eventually(lambda: proxy.accepted > before)
        view.process.send_signal(signal.SIGINT)
        assert view.process.wait(LIMIT_S) == 0
        view.wait_for(b"\x1b[?25h\x1b[?1049l")
