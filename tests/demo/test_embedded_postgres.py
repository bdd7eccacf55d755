"""Starts, stops, kills and abandons real embedded servers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from project.local.postgres_install import ServerFailed
from tests.interpreter import ROOT, run_command

ABANDON = """
import time
from project.local.postgres import EmbeddedPostgres
server = EmbeddedPostgres(fsync=False).start()
print(server.pid, server.home, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(fsync=False, options={"work_mem": "7MB"}) as running:
        yield running


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


def test_it_serves_on_loopback_only_with_the_settings_asked_for(server: EmbeddedPostgres) -> None:
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "work_mem": "7MB", "fsync": "off"}
    assert {name: one(server.url, f"SHOW {name}") for name in settings} == settings
    assert one(server.url, "SHOW max_connections") == "200"
    assert one(server.url, "SELECT lower('ÄÖ')") == "äö"


def test_a_wrong_password_is_refused(server: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url, password="wrong")


def test_start_is_idempotent_and_restart_keeps_url_and_data(server: EmbeddedPostgres) -> None:
    url, pid = server.url, server.pid
    assert server.start().pid == pid
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS a")
    server.restart()
    assert server.url == url
    assert server.pid not in (None, pid)
    assert one(url, "SELECT a FROM kept") == 42


def test_a_kill_cuts_clients_off_and_the_next_start_recovers(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE committed AS SELECT 7 AS a")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert server.pid is None
    server.start()
    assert one(server.url, "SELECT a FROM committed") == 7


def test_stop_refuses_clients_and_is_idempotent(server: EmbeddedPostgres) -> None:
    pid = server.pid
    assert pid is not None
    server.stop()
    server.stop()
    assert not alive(pid)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(server.url)
    server.start()


def test_closing_removes_a_temporary_home_and_keeps_a_persistent_one(persistent: Path) -> None:
    with EmbeddedPostgres(fsync=False) as temporary:
        home = temporary.home
        assert home.is_dir()
    assert not home.exists()
    with EmbeddedPostgres(home=persistent, fsync=False) as first, psycopg.connect(first.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        connection.commit()
        password = first.url.split(":")[2].split("@")[0]
    with EmbeddedPostgres(home=persistent, fsync=False) as second:
        assert one(second.url, "SELECT a FROM kept") == 1
        assert password in second.url


@pytest.fixture
def persistent() -> Iterator[Path]:
    """Borrow a reachable folder: pytest's own temporary folders are closed to other accounts."""
    with EmbeddedPostgres(fsync=False) as lender:
        yield lender.home / "persistent"


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
        owner.wait(10)
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


def test_run_reports_an_unknown_command() -> None:
    assert run_with_server("no-such-command-anywhere").returncode == 127


def test_run_passes_a_signal_on_and_reports_it() -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    base = {name: value for name, value in os.environ.items() if name != "DATABASE_URL_BOOTSTRAP"}
    launcher = [sys.executable, "-m", "project.local.postgres", "--no-fsync", "--run", sys.executable, "-c", code]
    with subprocess.Popen(launcher, cwd=ROOT, env=base, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_the_port_is_free_again_after_closing() -> None:
    with EmbeddedPostgres(fsync=False) as server:
        port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
