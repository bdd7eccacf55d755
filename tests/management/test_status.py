"""Exit statuses of ``salon_jobs status``, for scripts and monitors."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from urllib.parse import urlsplit

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests.interpreter import manage
from tests.management.operator import add, insert, run
from tests.settings import url_for
from tests.support import change, closed_port

pytestmark = pytest.mark.usefixtures("database")
REMEDY = "So it is unknown whether there is a problem: see that the server runs, and that the alias of"


def test_status_says_whether_there_is_a_problem() -> None:
    for number, kind in enumerate(("worker", "scheduler")):
        later = timezone.now() + timedelta(hours=1)
        insert("process", id=number, kind=kind, hostname="vm", pid=1, heartbeat_at=later)
    assert run("status")[0].startswith("No problems: ")
    add(state="failed")
    with pytest.raises(SystemExit) as raised:
        run("status")
    assert raised.value.code == 1


@pytest.mark.parametrize(
    ("silent", "said", "remedy"),
    [
        (1, "1 process is silent", "others take over its jobs; look at its host: worker vm/1"),
        (2, "2 processes are silent", "others take over their jobs; look at their hosts: worker vm/1, worker vm/2"),
    ],
)
def test_status_counts_silent_processes(silent: int, said: str, remedy: str) -> None:
    at = timezone.now() - timedelta(hours=1)
    for number in range(1, silent + 1):
        insert("process", id=number, kind="worker", hostname="vm", pid=number, heartbeat_at=at)
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("salon_jobs", "status", stdout=out)
    since = f"{timezone.localtime(at):%Y-%m-%d %H:%M %Z}"
    assert f"{said} (since {since}); {remedy}" in out.getvalue().splitlines()


@pytest.mark.process
def test_status_without_server_is_unknown() -> None:
    url = urlsplit(url_for("jobs_operator"))
    with closed_port() as port:
        nowhere = url._replace(netloc=f"{url.username}:x@127.0.0.1:{port}").geturl()
        done = manage("salon_jobs", "status", OPERATOR_DATABASE_URL=nowhere)
    assert (done.returncode, done.stdout) == (2, "")
    assert "WORKER.NOT_READY" in done.stderr
    assert REMEDY in done.stderr


def test_status_that_may_not_read_is_unknown() -> None:
    change("REVOKE SELECT ON salon_jobs_inbox FROM jobs_operator")
    try:
        with pytest.raises(CommandError, match="permission denied") as raised:
            run("status")
    finally:
        change("GRANT SELECT ON salon_jobs_inbox TO jobs_operator")
    assert raised.value.returncode == 2
    assert REMEDY in str(raised.value)
