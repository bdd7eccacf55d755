"""Real PostgreSQL server from a wheel, so that the demo and the tests need no installation.

``python -m project.local.postgres --run COMMAND …`` runs a command with its own server in ``DATABASE_URL_BOOTSTRAP``.
"""

from __future__ import annotations

import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self
from urllib.parse import urlsplit

import psycopg

from project.local import postgres_watcher
from project.local.ports import free_port
from project.local.postgres_install import ServerFailed, server_account, server_programs, temporary_home

_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0
_BIND_ATTEMPTS: Final = 5


class EmbeddedPostgres:
    """One server: TCP on 127.0.0.1 at a free port, superuser ``postgres`` with a random password.

    ``home`` keeps data, password and log between runs; without it they are temporary and are deleted when the server is
    closed. The port stays the same for the life of the object, so clients can reconnect. ``fsync=False`` is for tests:
    commits survive a crash of the server, but not of the machine, temporary files are in memory if it has room, no
    autovacuum changes a plan, and a login costs little. ``programs`` is the folder of another version's programs.
    ``options`` are additional ``-c`` settings. With ``follows``, the superuser's URL of another server, it begins as a
    copy of that one and streams from it until ``promote``; its ``application_name`` there is ``standby``. The server
    ends with this process, even if that is killed (see ``postgres_watcher``). Not thread-safe.
    """

    def __init__(
        self,
        *,
        home: Path | None = None,
        fsync: bool = True,
        options: Mapping[str, str] | None = None,
        programs: Path | None = None,
        follows: str | None = None,
    ) -> None:
        self._temporary = home is None
        self._home = home.absolute() if home is not None else None
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "fsync": "on" if fsync else "off",
            **({} if fsync else {"full_page_writes": "off", "autovacuum": "off", "scram_iterations": "1"}),
            # For tests of what they hold up.
            **({} if fsync else {"max_prepared_transactions": "4"}),
            **(options or {}),
        }
        self._fsync = fsync
        self._account = server_account()
        self._chosen = programs
        self._follows = follows
        self._programs: Path | None = None
        self._password = ""
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """URL of the superuser, known once the server was started."""
        if self._port is None:
            raise ServerFailed("the server was never started")
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres"

    @property
    def pid(self) -> int | None:
        """Process ID of the server; None unless it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def home(self) -> Path:
        """Folder that holds ``data``, ``password`` and ``server.log``."""
        if self._home is None:
            raise ServerFailed("the server was never started")
        return self._home

    @property
    def log_path(self) -> Path:
        """Path of the server's log."""
        return self.home / "server.log"

    def start(self) -> Self:
        """Create the cluster if there is none, start the server and wait until it answers. Idempotent.

        Raises ``ServerFailed`` with the end of the server's log, and leaves nothing running.
        """
        if self.pid is not None:
            return self
        try:
            if self._programs is None:
                self._prepare()
            self._launch()
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        """Shut down fast (disconnects clients, loses nothing), within bounded time; keep the data. Idempotent."""
        self._end(signal.SIGINT, signal.SIGQUIT, signal.SIGKILL)

    def kill(self) -> None:
        """End the server like a crash: no checkpoint, clients cut off, recovery at the next start.

        Uses an immediate shutdown (SIGQUIT) rather than SIGKILL, which would leave backends behind for a while.
        """
        self._end(signal.SIGQUIT, signal.SIGKILL)

    def promote(self) -> None:
        """Make a standby the primary; return when it accepts writes. Raises ServerFailed if it does not in time."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            [(promoted,)] = connection.execute("SELECT pg_promote(true, %s)", [round(_START_TIMEOUT_S)]).fetchall()
        if not promoted:
            raise ServerFailed(f"the standby was not promoted within {_START_TIMEOUT_S:.0f} s")

    def demote(self) -> None:
        """Restart a primary as a standby, which answers reads only; it streams from the server it follows, if any."""
        self.stop()
        signal_file = self.home / "data" / "standby.signal"
        signal_file.touch()
        self._account.own(signal_file)
        self.start()

    def restart(self) -> None:
        """Restart on the same port with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good and delete a temporary home. Idempotent; ``start`` may follow."""
        self.stop()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            _stdin(watcher).close()  # the watcher deletes the temporary home
            watcher.wait(_STOP_TIMEOUT_S)
        self._programs = None
        if self._temporary:
            self._home = None
            self._port = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _prepare(self) -> None:
        if self._home is None:
            self._home = temporary_home(self._account, in_memory=not self._fsync)
        else:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._watcher = _watch(self.home, temporary=self._temporary)
        self._account.own(self.home)
        if not self._account.reaches(self.home):
            raise ServerFailed(f"the account that runs PostgreSQL cannot reach {self.home}; choose another folder")
        self._programs = server_programs(self._account, copy_to=self.home / "install", programs=self._chosen)
        version = self._version()
        if version < 16:
            self._settings.pop("scram_iterations", None)
        password_file = self.home / "password"
        if not (self.home / "data" / "PG_VERSION").exists():
            password_file.unlink(missing_ok=True)
            password_file.touch(mode=0o600)
            password = secrets.token_urlsafe(24) if self._follows is None else urlsplit(self._follows).password or ""
            password_file.write_text(password)
            self._account.own(password_file)
            if self._follows is None:
                self._initialise(password_file, version)
            else:
                self._copy(self._follows)
        self._password = password_file.read_text().strip()

    def _initialise(self, password_file: Path, version: int) -> None:
        command = [
            str(self._program("initdb")),
            *("--pgdata", str(self.home / "data"), "--username", "postgres", "--pwfile", str(password_file)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", *_locale(version)),
            *(() if self._fsync else ("--no-sync",)),
            *(("--set", "scram_iterations=1") if "scram_iterations" in self._settings else ()),
        ]
        result = self._account.run(command, cwd=self.home)
        if result.returncode:
            raise ServerFailed(f"initdb failed: {result.stderr.strip() or result.stdout.strip()}")

    def _copy(self, primary: str) -> None:
        command = [
            *(str(self._program("pg_basebackup")), "--pgdata", str(self.home / "data"), "--checkpoint", "fast"),
            *("--write-recovery-conf", "--dbname", f"{primary}?application_name=standby"),
            *(() if self._fsync else ("--no-sync",)),
        ]
        result = self._account.run(command, cwd=self.home)
        if result.returncode:
            raise ServerFailed(f"pg_basebackup failed: {result.stderr.strip()}")

    def _version(self) -> int:
        text = self._account.run([str(self._program("postgres")), "--version"], cwd=self.home).stdout
        return int(re.findall(r"\d+", text)[0])

    def _launch(self) -> None:
        for attempt in range(1, _BIND_ATTEMPTS + 1):
            port = self._port or free_port()
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
            command = [str(self._program("postgres")), "-D", str(self.home / "data"), "-p", str(port), *settings]
            self._process = self._account.spawn(command, cwd=self.home, log=self.log_path)
            self._tell_watcher(self._process.pid)
            failure = self._wait_until_ready(self._process, port)
            if failure is None:
                self._port = port
                return
            self.stop()
            said = self.log_path.read_text(errors="replace")[log_start:]
            taken = "could not bind" in said and self._port is None
            if not taken or attempt == _BIND_ATTEMPTS:
                raise ServerFailed(f"PostgreSQL did not start: {failure}\n{said[-2000:]}")

    def _wait_until_ready(self, process: subprocess.Popen[bytes], port: int) -> str | None:
        """Return ``None`` once the server answers as ours, otherwise why it did not."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        reason = "nothing was tried"
        while time.monotonic() < deadline:
            if process.poll() is not None:
                return f"it exited with status {process.returncode}"
            try:
                with psycopg.connect(
                    host="127.0.0.1",
                    port=port,
                    user="postgres",
                    password=self._password,
                    dbname="postgres",
                    connect_timeout=5,
                ):
                    return None
            except psycopg.OperationalError as error:
                reason = str(error)
                time.sleep(0.02)
        return f"no answer within {_START_TIMEOUT_S:.0f} s ({reason})"

    def _end(self, *signals: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number in signals:
            process.send_signal(number)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
            break
        self._tell_watcher(0)

    def _tell_watcher(self, pid: int) -> None:
        if self._watcher is None:
            raise ServerFailed("the watcher of the server is missing")
        _stdin(self._watcher).write(f"{pid}\n")
        _stdin(self._watcher).flush()

    def _program(self, name: str) -> Path:
        if self._programs is None:
            raise ServerFailed("the server was never prepared")
        return self._programs / name


def _locale(version: int) -> tuple[str, ...]:
    """Return the options for a locale that orders by code points and knows letters of every language."""
    if version < 17:
        return "--locale", "C.UTF-8"
    return "--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"


def _watch(home: Path, *, temporary: bool) -> subprocess.Popen[str]:
    kind = "temporary" if temporary else "persistent"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(postgres_watcher.__file__)), str(home), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        text=True,
    )


def _stdin(process: subprocess.Popen[str]) -> IO[str]:
    if process.stdin is None:
        raise ServerFailed("the watcher has no input")
    return process.stdin


if __name__ == "__main__":
    from project.local.postgres_run import main

    sys.exit(main(sys.argv[1:]))
