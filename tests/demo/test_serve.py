"""Runs ``make serve`` until Ctrl-C, and the command that lets jobs wait for a slow API."""

from __future__ import annotations

import http.cookiejar
import json
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.management import call_command

from project.demo.management.commands import call_slow_api
from tests.interpreter import ROOT, run_command
from tests.support import elsewhere, working
from tests.waiting import LIMIT_S, eventually

SERVICES = ("runserver", "runworker", "--child", "runscheduler", "relay_outbox", "consume_queue", "nats-server")
# It installs servers, migrates and fills a database first.
START_S = 300.0


def descendants(pid: int) -> dict[int, str]:
    """Return the commands of all processes that this one started, directly or not."""
    found = {pid: ""}
    lines = run_command("ps", "-eww", "--sort=start_time", "-o", "pid=,ppid=,args=").stdout.splitlines()
    for _ in range(5):  # a child may be listed before its parent
        for child, parent, args in (line.split(None, 2) for line in lines):
            if int(parent) in found:
                found[int(child)] = args
    return {child: args for child, args in found.items() if args}


@pytest.mark.slow
@pytest.mark.usefixtures("migrated")  # the roles of a server that is there already have the passwords of this run
def test_serve_until_interrupted(tmp_path: Path) -> None:
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def get(url: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        with browser.open(urllib.request.Request(url, data, {"Referer": url}), timeout=LIMIT_S) as response:
            return str(response.read().decode())

    log = tmp_path / "log"
    with log.open("w") as output:
        served = subprocess.Popen([sys.executable, "-u", "-m", "project.demo", "--serve"], cwd=ROOT, stdout=output)
    try:
        ended = eventually(
            lambda: served.poll() or "Ctrl-C ends them all." in log.read_text(), limit_s=START_S, what=log.read_text
        )
        assert ended is True, log.read_text()
        [dashboard] = re.findall(r"http://\S+/dashboard/", log.read_text())
        [(login, password)] = re.findall(r"Login: +(\S+)  password: (\S+)", log.read_text())
        origin = dashboard.partition("/admin/")[0]
        [token] = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', get(dashboard))
        address = f"{origin}/admin/login/?next=/admin/salon_jobs/dashboard/"
        page = get(address, username=login, password=password, csrfmiddlewaretoken=token)
        for shown in ("6 failed jobs", "1 parked aggregate", "queue exports"):
            assert shown in page, shown
        assert "no worker is running" not in page
        # The worker writes its statistics from time to time, and jobs arrive all the time.
        eventually(lambda: "charge-card" in get(dashboard), limit_s=START_S)
        for task in ("sync-till", "print-report", "remind-customer"):
            eventually(lambda task=task: task in get(f"{origin}/admin/salon_jobs/job/"), limit_s=START_S)  # type: ignore[misc]
        readiness = {name: url for url, name in re.findall(r"Readiness: (\S+) \((\w+)\)", log.read_text())}
        assert {name: json.loads(get(url))["status"] for name, url in readiness.items()} == dict.fromkeys(
            ("runscheduler", "relay_outbox", "consume_queue", "runworker"), "ready"
        )
        started = descendants(served.pid)
        for part in SERVICES:
            assert any(part in command for command in started.values()), part
        served.send_signal(signal.SIGINT)
        assert served.wait(LIMIT_S) == 0, log.read_text()
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    finally:
        served.terminate()
        served.wait(LIMIT_S)


def test_commands_need_what_is_served() -> None:
    """Whatever the command: one of a web process has no address of its own database here."""
    for command in ("salon_jobs status", "ping"):
        done = run_command(sys.executable, "-m", "project.demo.manage", *command.split())
        assert (done.returncode, done.stderr) == (1, "run make serve first, and leave it running\n")


def test_slow_api_lets_jobs_wait_at_once(process_id: int, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as threads, working(process_id):
        elsewhere(threads, lambda: call_command(call_slow_api.Command(), jobs=20, seconds=0.3)).result()
    printed = capsys.readouterr().out
    assert "20 jobs, 20 answers after 0.3 s each" in printed
    [waited] = re.findall(r"At most (\d+) waited at once", printed)
    assert int(waited) > 1
