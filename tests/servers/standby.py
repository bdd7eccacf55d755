"""Real primary with a streaming standby, and what can happen to them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg

from benchmarks.processes import descendants
from project.local.postgres import EmbeddedPostgres
from tests.servers.forwarder import Forwarder
from tests.waiting import eventually


class Replicated(ExitStack):
    """Primary and standby, asynchronous unless ``synchronous()`` was called. A context manager.

    Clients reach them in three ways: ``address`` is one address that a failover moves (``move``); ``hosts`` are two
    that do not move, one for each server, for clients that know several hosts; a server's own ``url`` passes no proxy.
    Whatever happens to a server, the superuser of the tests connects to its own URL.
    """

    def __init__(self, *, fsync: bool = False, options: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._fsync = fsync
        self._options = dict(options or {})
        self._synchronous = False
        self._frozen: list[int] = []
        self.primary = EmbeddedPostgres(fsync=fsync, options=options)
        # Known once the standby streams.
        self.standby: EmbeddedPostgres
        self.link = self.address = Forwarder(0)
        self.hosts: list[Forwarder] = []

    def __enter__(self) -> Self:
        """Start the primary; ``follow`` adds the standby, once there is something to copy."""
        try:
            self.enter_context(self.primary)
            self.address = self._forwarder(self.primary)
            self.hosts = [self._forwarder(self.primary)]
        except BaseException:
            self.close()
            raise
        return self

    def follow(self) -> None:
        """Copy the primary into a new standby, which streams from it by ``link``."""
        self.link = self._forwarder(self.primary)
        self.standby = EmbeddedPostgres(
            fsync=self._fsync, options=self._options, follows=_at(self.primary.url, self.link.port)
        )
        self.enter_context(self.standby)
        if len(self.hosts) == 1:
            self.hosts.append(self._forwarder(self.standby))
        else:
            [free] = [host for host in self.hosts if host.target_port != port_of(self.primary)]
            free.target_port = port_of(self.standby)
            free.break_open()
            free.open()
        self.catch_up()
        if self._synchronous:
            self.synchronous()

    def synchronous(self) -> None:
        """Let every commit on the primary wait until the standby has written it."""
        self._synchronous = True
        self._configure("SET synchronous_standby_names = 'standby'")
        self._wait("sync_state = 'sync'")

    def asynchronous(self) -> None:
        """Let commits wait for nothing again."""
        self._synchronous = False
        self._configure("RESET synchronous_standby_names")
        self._wait("sync_state = 'async'")

    def catch_up(self) -> None:
        """Wait until the standby has replayed all that the primary has written. Not while it is held back."""
        self._wait("replay_lsn >= pg_current_wal_lsn()")

    def hold_back(self) -> None:
        """Let the standby receive nothing more: what is committed from now on is lost by ``promote``.

        What it received before counts as replayed; a checkpoint makes it begin at a known place.
        """
        self.catch_up()
        self.link.silence()

    def promote(self, *, move: bool = True, cut: bool = True) -> None:
        """Make the standby the primary; the old one becomes ``standby`` in name, whatever state it is in.

        What was held back is lost. ``move`` and ``cut``: see there.
        """
        self.link.cut()
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        if move:
            self.move(cut=cut)

    def move(self, *, cut: bool = True) -> None:
        """Point the address to the primary; with ``cut``, break the open connections instead of leaving them."""
        self.address.target_port = port_of(self.primary)
        if cut:
            self.address.break_open()

    def kill_primary(self) -> None:
        """End the primary like a crash of its host: its clients are cut off."""
        self.primary.kill()

    def freeze_primary(self) -> None:
        """Stop every process of the primary (SIGSTOP): its kernel still acknowledges, nobody answers."""
        pid = self.primary.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self._frozen = [pid, *descendants(pid)]
        self._signal(signal.SIGSTOP)

    def fence(self) -> None:
        """End the servers' processes that were frozen, as one fences a host that does not answer."""
        self._signal(signal.SIGKILL)
        self._frozen = []
        self.standby.kill()

    def make_read_only(self, *, on: bool = True) -> None:
        """Let the primary refuse writes from now on, or take them again, and keep its connections."""
        self._configure(f"SET default_transaction_read_only = {'on' if on else 'off'}")

    def rebuild(self) -> None:
        """Throw the demoted server away, and follow the primary with a new copy of it."""
        old = self.standby
        old.close()
        self.link.cut()
        self.follow()

    def connect(self) -> psycopg.Connection[Any]:
        """Connect to the primary as the superuser, outside any transaction."""
        return psycopg.connect(self.primary.url, autocommit=True)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _forwarder(self, server: EmbeddedPostgres) -> Forwarder:
        forwarder = Forwarder(port_of(server))
        forwarder.open()
        self.callback(forwarder.cut)
        return forwarder

    def _configure(self, change: str) -> None:
        with self.connect() as connection:
            connection.execute(f"ALTER SYSTEM {change}".encode())
            connection.execute("SELECT pg_reload_conf()")

    def _wait(self, condition: str) -> None:
        query = f"SELECT count(*) FROM pg_stat_replication WHERE application_name = 'standby' AND {condition}".encode()
        with self.connect() as connection:
            eventually(lambda: connection.execute(query).fetchall(), [(1,)], what=lambda: f"never {condition}")


def port_of(server: EmbeddedPostgres) -> int:
    """Return the port of a server that was started."""
    port = urlsplit(server.url).port
    assert port is not None
    return port


def _at(url: str, port: int) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}"))
