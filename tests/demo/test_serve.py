"""Runs ``make serve`` on a database of its own, signs in, reads the dashboard, and ends it by Ctrl-C."""

from __future__ import annotations

import http.cookiejar
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest

from tests.interpreter import ROOT

_PATIENCE_S = 300.0


class Served:
    """``python -m project.demo --serve``, and a browser of its pages."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "project.demo", "--serve"], cwd=ROOT, stdout=subprocess.PIPE
        )
        self.output = ""
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._browser = urllib.request.build_opener(cookies)

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + _PATIENCE_S
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            if select.select([self.process.stdout], [], [], 1)[0]:
                part = os.read(self.process.stdout.fileno(), 65536)
                assert part, self.output
                self.output += part.decode()

    def wait_for_page(self, url: str, text: str) -> None:
        """Wait until a page shows the text."""
        until = time.monotonic() + 90
        while text not in (page := self.get(url)):
            assert time.monotonic() < until, page
            time.sleep(1)

    def get(self, url: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        request = urllib.request.Request(url, data, {"Referer": url})
        with self._browser.open(request, timeout=30) as response:
            return str(response.read().decode())


def commands() -> dict[int, tuple[int, str]]:
    """Return parent and command of every process on the machine, by its ID."""
    lines = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,args="], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return {int(pid): (int(parent), args) for pid, parent, args in (line.split(None, 2) for line in lines.splitlines())}


def descendants(pid: int) -> dict[int, str]:
    """Return the commands of all processes that this one started, directly or not."""
    every = commands()
    found: dict[int, str] = {}
    parents = [pid]
    while parents:
        parent = parents.pop()
        children = {each: args for each, (above, args) in every.items() if above == parent}
        found |= children
        parents += children
    return found


@pytest.mark.slow
def test_everything_runs_and_ctrl_c_ends_it() -> None:
    served = Served()
    try:
        served.wait_for("Ctrl-C ends them all.")
        [dashboard] = re.findall(r"http://\S+/dashboard/", served.output)
        [(login, password)] = re.findall(r"Login: +(\S+)  password: (\S+)", served.output)
        sign_in = served.get(dashboard)
        [token] = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', sign_in)
        origin = dashboard.partition("/admin/")[0]
        address = f"{origin}/admin/login/?next=/admin/salon_jobs/dashboard/"
        page = served.get(address, username=login, password=password, csrfmiddlewaretoken=token)
        for shown in ("6 failed jobs", "1 parked aggregate", "queue exports"):
            assert shown in page, shown
        # The worker writes its statistics from time to time, and failing tasks come from them.
        served.wait_for_page(dashboard, "charge-card")
        assert "no worker is running" not in page
        # Jobs arrive all the time: some are retried, some long, some scheduled.
        for task in ("sync-till", "print-report", "remind-customer"):
            served.wait_for_page(f"{origin}/admin/salon_jobs/job/", task)
        started = descendants(served.process.pid)
        for part in (
            "runserver",
            "runworker",
            "--child",
            "runscheduler",
            "relay_outbox",
            "consume_queue",
            "nats-server",
        ):
            assert any(part in command for command in started.values()), part
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(60) == 0, served.output
        left = {pid: args for pid, (_, args) in commands().items() if started.get(pid) == args}
        assert not left
    finally:
        served.process.terminate()
        served.process.communicate(timeout=60)
