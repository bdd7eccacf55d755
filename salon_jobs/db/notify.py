"""NOTIFY after commit, at most once per 20 ms per channel and process; and the connection that LISTENs.

NOTIFY inside the business transaction halves commit throughput with many writers; one per commit costs a fifth; one in
twenty costs nothing measurable. A suppressed notification follows another by less than 20 ms, so a listener polls again
that long after each one it hears (``SECOND_LOOK``).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal

import psycopg
from django.db import DatabaseError, InterfaceError, connections, transaction
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.db.statements import in_one_trip

QUIET: Final = timedelta(milliseconds=20)
SECOND_LOOK: Final = timedelta(milliseconds=30)


class WakeUps:
    """Wake-ups of one channel."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self.last_sent = float("-inf")
        self._by_alias: dict[str, WakeUp] = {}

    def after_commit(self, alias: str) -> None:
        """Send one wake-up after the caller's transaction commits. Never fails the transaction."""
        wake_up = self._by_alias.setdefault(alias, WakeUp(self, alias))
        if not any(hook[1] is wake_up for hook in connections[alias].run_on_commit):
            transaction.on_commit(wake_up, using=alias, robust=True)


class WakeUp:
    """Wake-up on one alias, sent unless this process has sent one within the last 20 ms."""

    # It needs no store, so a tenant context opens no transaction for it.
    storeless = True

    def __init__(self, channel: WakeUps, alias: str) -> None:
        self._channel = channel
        self._alias = alias
        # Django logs a failing robust callback by this name: without it, the failure would reach the caller.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        """Send it now. The connection must be idle."""
        now = time.monotonic()
        if now - self._channel.last_sent < QUIET.total_seconds():
            return
        self._channel.last_sent = now
        connection = connections[self._alias]
        connection.ensure_connection()
        in_one_trip(connection, f"NOTIFY {self._channel.channel}")


_LOOK_S = 0.5
_PING_S = 5.0
_PROVEN_FOR_S = 3 * _PING_S
_STOP_S = 2.0
_RECONNECT_S = (0.2, 5.0)
# Behind a transaction-mode pooler LISTEN succeeds but nothing is ever heard, so a ping of our own must arrive first. It
# has its own channel: a pooled connection keeps listening to whatever a client left it with.
_PING_CHANNEL = "salon_jobs_ping"
_HEARD_WITHIN_S = 5.0
_DEAF_RETRY_S = 60.0
_REMEDY = (
    "notifications do not arrive: is a transaction-mode pooler in between? Point SALON_JOBS['LISTEN_URL'] at the same"
    " database on the server itself, or set SALON_JOBS['LISTEN'] = False; jobs are found by polling"
)


class Listener:
    """Listener that calls ``on_wake`` with each notification's payload, and after each (re)connect.

    Notifications sent while it was disconnected are lost. Polling continues alongside, so a listener that cannot
    connect or hears nothing costs latency, never jobs. With the setting LISTEN off it does nothing.
    """

    def __init__(self, channel: str, on_wake: Callable[[str], None]) -> None:
        self._channel = channel
        self._on_wake = on_wake
        self._stop = threading.Event()
        self._hears = False
        self._warned = False
        self._heard = float("-inf")
        self._thread = threading.Thread(target=self._run, name="salon-jobs-listener", daemon=True)

    def start(self) -> None:
        """Start the thread, unless LISTEN is off."""
        if conf.listen:
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; returns when it has ended, or still hangs with its connection. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    @property
    def listening(self) -> bool | Literal["off"]:
        """Whether wake-ups are heard now: proven at connection and since; "off" when disabled by the setting."""
        return self._hears and self.silent_for_s() < _PROVEN_FOR_S if conf.listen else "off"

    def silent_for_s(self) -> float:
        """Return the seconds since the last proof that the connection works; infinite before the first."""
        return time.monotonic() - self._heard

    def _run(self) -> None:
        delay = _RECONNECT_S[0]
        while not self._stop.is_set():
            try:
                with psycopg.connect(autocommit=True, **_parameters()) as connection:
                    hears = self._hears_a_ping(connection)
                    if hears:
                        delay = _RECONNECT_S[0]
                        self._listen(connection)
                if not hears:
                    self._stay_deaf()
            except (psycopg.Error, DatabaseError, InterfaceError) as error:
                log_event(logging.WARNING, events.LISTENER_LOST, error=str(error).strip())
                self._stop.wait(delay)
                delay = min(delay * 2, _RECONNECT_S[1])
            finally:
                self._hears = False

    def _hears_a_ping(self, connection: psycopg.Connection[Any]) -> bool:
        """Listen for a ping sent on the connection that enqueues jobs; return False when it does not arrive.

        Our own connection would prove nothing: a pooler may route the ping to the very server connection that listens.
        """
        payload = secrets.token_hex(8)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(_PING_CHANNEL)))
        try:
            with connections[conf.database].cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, %s)", [_PING_CHANNEL, payload])
        finally:
            connections[conf.database].close()
        give_up = time.monotonic() + _HEARD_WITHIN_S
        while time.monotonic() < give_up and not self._stop.is_set():
            if payload in [heard.payload for heard in connection.notifies(timeout=_LOOK_S, stop_after=1)]:
                connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(_PING_CHANNEL)))
                return True
        return False

    def _stay_deaf(self) -> None:
        """Leave it to polling for a while; the retry notices a removed pooler without a restart."""
        if not self._warned and not self._stop.is_set():
            self._warned = True
            log_event(logging.WARNING, events.LISTENER_DEAF, detail=_REMEDY)
        self._stop.wait(_DEAF_RETRY_S)

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._hears, self._warned = True, False
        self._proven()
        self._on_wake("")
        while not self._stop.is_set():
            for notification in connection.notifies(timeout=_LOOK_S, stop_after=1):
                self._proven()
                self._on_wake(notification.payload)
            if self.silent_for_s() > _PING_S:
                connection.execute("SELECT 1")
                self._proven()

    def _proven(self) -> None:
        self._heard = time.monotonic()


def _parameters() -> dict[str, Any]:
    """Return connection parameters: LISTEN_URL when set (a direct one next to a pooler), else Django's own settings."""
    if conf.listen_url:
        return {"conninfo": conf.listen_url}
    parameters: dict[str, Any] = connections[conf.database].get_connection_params()
    for django_only in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(django_only, None)
    return parameters
