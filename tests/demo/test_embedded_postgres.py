"""Starts and abandons real embedded servers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from project.local.postgres_install import ServerFailed, server_account, temporary_home
from tests.interpreter import ROOT, run_command

ABANDON = """
import time
from project.local.postgres import EmbeddedPostgres
server = EmbeddedPostgres(fsync=False).start()
print(server.pid, server.home, flush=True)
time.sleep(60)
"""


def one(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], patience_s: float = 20) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_it_serves_on_loopback_alone_and_closing_removes_a_temporary_home() -> None:
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "work_mem": "7MB", "fsync": "off"}
    with EmbeddedPostgres(fsync=False, options={"work_mem": "7MB"}) as temporary:
        assert {name: one(temporary.url, f"SHOW {name}") for name in settings} == settings
        assert one(temporary.url, "SELECT lower('ÄÖ')") == "äö"
        home = temporary.home
        assert home.is_dir()
    assert not home.exists()


@pytest.fixture
def persistent() -> Iterator[Path]:
    """Lend a folder that the server's account reaches, which pytest's own are not."""
    folder = temporary_home(server_account())
    yield folder
    shutil.rmtree(folder)


def test_closing_keeps_a_persistent_home(persistent: Path) -> None:
    with EmbeddedPostgres(home=persistent, fsync=False) as first, psycopg.connect(first.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        connection.commit()
        password = first.url.split(":")[2].split("@")[0]
    with EmbeddedPostgres(home=persistent, fsync=False) as second:
        assert one(second.url, "SELECT a FROM kept") == 1
        assert password in second.url


def test_an_impossible_option_fails_with_the_words_of_the_server() -> None:
    server = EmbeddedPostgres(fsync=False, options={"no_such_setting": "1"})
    with pytest.raises(ServerFailed, match="no_such_setting"):
        server.start()
    assert server.pid is None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_owner_however_that_dies(number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", ABANDON], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with owner:
        assert owner.stdout is not None
        pid, home = owner.stdout.readline().split()
        assert alive(int(pid))
        owner.send_signal(number)
        owner.wait(30)
    wait_until(lambda: not alive(int(pid)) and not Path(home).exists())


def run_with_server(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if name != "DATABASE_URL_BOOTSTRAP"}
    launcher = [sys.executable, "-m", "project.local.postgres", "--no-fsync", "--run", *command]
    return run_command(*launcher, environment={**base, **environment})


def test_run_gives_the_command_a_server_and_returns_its_status() -> None:
    code = (
        "import os, psycopg, sys; psycopg.connect(os.environ['DATABASE_URL_BOOTSTRAP']).close(); "
        "print('answered'); sys.exit(7)"
    )
    result = run_with_server(sys.executable, "-c", code)
    assert (result.stdout, result.returncode) == ("answered\n", 7), result.stderr


def test_run_uses_the_server_that_is_named_already() -> None:
    code = "import os; print(os.environ['DATABASE_URL_BOOTSTRAP'])"
    result = run_with_server(sys.executable, "-c", code, DATABASE_URL_BOOTSTRAP="postgresql://named")
    assert (result.stdout, result.returncode) == ("postgresql://named\n", 0)


def test_run_passes_a_signal_on_and_reports_it() -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    base = {name: value for name, value in os.environ.items() if name != "DATABASE_URL_BOOTSTRAP"}
    launcher = [sys.executable, "-m", "project.local.postgres", "--no-fsync", "--run", sys.executable, "-c", code]
    with subprocess.Popen(launcher, cwd=ROOT, env=base, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
