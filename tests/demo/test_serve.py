"""Runs ``make serve`` on a database of its own, uses its dashboard and its tools, and ends it by Ctrl-C."""

from __future__ import annotations

import http.cookiejar
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.interpreter import ROOT, run_command
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
        eventually(lambda: "Ctrl-C ends them all." in log.read_text(), limit_s=START_S, what=log.read_text)
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
        for words, printed in (
            (("manage", "call_slow_api", "--jobs", "20", "--seconds", "0.3"), "20 jobs, 20 answers"),
            (("psql", "-Atc", "SELECT current_user"), "postgres\n"),
        ):
            tool = run_command(sys.executable, "-m", f"project.demo.{words[0]}", *words[1:])
            assert printed in tool.stdout, tool.stderr
        started = descendants(served.pid)
        for part in SERVICES:
            assert any(part in command for command in started.values()), part
        served.send_signal(signal.SIGINT)
        assert served.wait(LIMIT_S) == 0, log.read_text()
        assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    finally:
        served.terminate()
        served.wait(LIMIT_S)
