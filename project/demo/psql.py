"""A psql prompt on the server of ``make serve``, or on one started for it: ``python -m project.demo.psql``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psycopg

from project import settings
from project.demo.server import HOME, DemoServer, demo_server
from project.local.postgres_install import Account, ServerFailed, server_programs

_PORT_LINE: Final = 3


def main(options: list[str]) -> int:
    """Run psql as the superuser, on the demo's database if there is one, and return its exit status."""
    try:
        with _server() as server:
            demo = server.finished_database()
            path = f"/{demo.name}" if demo else urlsplit(server.superuser_url).path
            return _psql(urlunsplit(urlsplit(server.superuser_url)._replace(path=path)), options)
    except (ServerFailed, psycopg.Error) as error:
        sys.stderr.write(f"{error}\n")
        return 2


@contextmanager
def _server() -> Iterator[DemoServer]:
    """Use the server that ``make serve`` runs now, else start it as ``make serve`` would. Raises ServerFailed."""
    if settings.SALON_JOBS["BOOTSTRAP_URL"] is None and (url := running_url()):
        yield DemoServer(url, ours=True)
        return
    with demo_server() as server:
        yield server


def running_url() -> str | None:
    """Return the URL of the server that runs on the data in ``.demo``; None when it does not answer."""
    try:
        port = (HOME / "data" / "postmaster.pid").read_text().splitlines()[_PORT_LINE]
        password = quote((HOME / "password").read_text().strip(), safe="")
        url = f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
        psycopg.connect(url, connect_timeout=5).close()
    except (OSError, IndexError, psycopg.OperationalError):
        return None
    return url


def _psql(url: str, options: list[str]) -> int:
    parts = urlsplit(url)
    if parts.password is not None:  # other users can read a command line, but not the environment
        os.putenv("PGPASSWORD", unquote(parts.password))
        user, address = quote(unquote(parts.username or ""), safe=""), parts.netloc.rpartition("@")[2]
        url = urlunsplit(parts._replace(netloc=f"{user}@{address}"))
    program = server_programs(Account(), copy_to=HOME / "psql") / "psql"
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C ends a query, not the server
    return subprocess.call([str(program), url, *options])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
