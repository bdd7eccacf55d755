"""Shows ``salon_jobs top``: one page for scripts, and the live view in a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from io import StringIO

from django.core.management import call_command
from django.db import connections
from django.test.utils import CaptureQueriesContext

from tests.conftest import ROOT
from tests.e2e.severing_proxy import SeveringProxy
from tests.e2e.worker_process import eventually
from tests.management.test_job_commands import add
from tests.settings import url_for
from tests.support import change


def test_one_page_tells_what_waits_runs_and_fails(process_id: int) -> None:
    add(queue="night")
    add(state="running", leased_by=process_id, lease=1)
    failed = add(task="charge", state="failed", fingerprint=1, error_class="builtins.KeyError")
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, message) VALUES (%s, 1, '', %s)",
        failed,
        "\x1b[2Jno such\ncard",
    )
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', 'night', true)")
    out = StringIO()
    with CaptureQueriesContext(connections["operator"]) as captured:
        call_command("salon_jobs", "top", stdout=out)
    page = out.getvalue()
    assert "waiting 1, due 1" in page
    assert "paused: queue night" in page
    assert "running longest" in page
    assert "KeyError: ?[2Jno such card" in page
    assert "\x1b" not in page, "what jobs say commands no terminal"
    assert len(captured.captured_queries) <= 12


def test_the_live_view_refreshes_and_ends_on_q_with_the_terminal_as_before(database: None) -> None:
    add(queue="first-queue")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "manage.py", "salon_jobs", "top", "--every", "1s"],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "COLUMNS": "120", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    seen_so_far = b""

    def read_until(text: bytes) -> None:
        nonlocal seen_so_far
        deadline = time.monotonic() + 20
        while text not in seen_so_far:
            assert time.monotonic() < deadline, seen_so_far.decode(errors="replace")
            if select.select([ours], [], [], 0.2)[0]:
                seen_so_far += os.read(ours, 65536)

    try:
        read_until(b"first-queue")
        add(queue="second-queue")
        read_until(b"second-queue")
        assert b"\x1b[?1049h" in seen_so_far
        os.write(ours, b"xq")
        read_until(b"\x1b[?1049l")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_the_live_view_ends_at_once_though_the_database_hangs(database: None) -> None:
    ours, theirs = pty.openpty()
    with SeveringProxy(url_for("jobs_operator")) as proxy:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "salon_jobs", "top", "--every", "1s"],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "OPERATOR_DATABASE_URL": proxy.url},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        try:
            drawn = b""
            while b"jobs running" not in drawn:
                assert select.select([ours], [], [], 20)[0]
                drawn += os.read(ours, 65536)
            before = proxy.accepted
            proxy.hang()
            eventually(lambda: proxy.accepted > before, what="the next look")
            process.send_signal(signal.SIGINT)
            assert process.wait(5) == 0
            assert os.read(ours, 65536).endswith(b"\x1b[?25h\x1b[?1049l")
        finally:
            process.kill()
            process.wait()
            os.close(ours)
            os.close(theirs)
