"""Starts and abandons real embedded servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreter import ROOT
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.process

ABANDON = """
import signal
from project.local.postgres import EmbeddedPostgres
server = EmbeddedPostgres(fsync=False).start()
print(server.pid, server.home, flush=True)
signal.pause()
"""
ANSWER = "import os, psycopg, sys; psycopg.connect(os.environ['DATABASE_URL_BOOTSTRAP']).close(); print(); sys.exit(7)"


def started(*words: str, **variables: str) -> subprocess.Popen[str]:
    base = {name: value for name, value in os.environ.items() if name != "DATABASE_URL_BOOTSTRAP"} | variables
    return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=base, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_server_ends_with_its_owner(number: signal.Signals) -> None:
    with started("-c", ABANDON) as owner:
        assert owner.stdout is not None
        pid, home = owner.stdout.readline().split()
        owner.send_signal(number)
        owner.wait(LIMIT_S)
    eventually(lambda: not Path(f"/proc/{pid}").exists() and not Path(home).exists())


def test_chosen_folder_is_used() -> None:
    """A folder that the environment names comes before memory."""
    with started("-c", ABANDON, TMPDIR="/var/tmp") as owner:
        assert owner.stdout is not None
        home = Path(owner.stdout.readline().split()[1])
        owner.terminate()
    assert home.parent == Path("/var/tmp")


@pytest.mark.parametrize(
    ("code", "number", "status"),
    [(ANSWER, 0, 7), ("import signal; print(flush=True); signal.pause()", signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_run_returns_status_and_passes_signals(code: str, number: int, status: int) -> None:
    with started("-m", "project.local.postgres", "--no-fsync", "--run", sys.executable, "-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        process.send_signal(number)
        assert process.wait(LIMIT_S) == status
