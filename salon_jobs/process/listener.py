"""The connection that LISTENs for wake-ups."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, Literal

import psycopg
from django.db import Error, connections
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.process.loop import OUTAGE_WAITS, Loop

_POLL_S = 0.5
_PING_S = 5.0
_PROVEN_FOR_S = 3 * _PING_S
_STOP_S = 2.0
# Behind a transaction-mode pooler LISTEN succeeds but nothing is ever heard, so a ping of our own must arrive first. It
# has its own channel: a pooled connection keeps listening to whatever a client left it with.
_PING_CHANNEL = "salon_jobs_ping"
_PING_WITHIN_S = 5.0
_DEAF_RETRY_S = 60.0
_REMEDY = (
    "notifications do not arrive: is a transaction-mode pooler in between? Set SALON_JOBS['LISTEN'] to the URL of the"
    " same database on the server itself, or to False; jobs are found by polling"
)


class Listener(Loop):
    """Loop that calls ``on_wake`` with each notification's payload, and after each (re)connect.

    Notifications sent while it was disconnected are lost. Polling continues alongside, so a listener that cannot
    connect or hears nothing costs latency, never jobs. With the setting LISTEN off it does nothing.
    """

    def __init__(self, channel: str, on_wake: Callable[[str], None]) -> None:
        super().__init__("listener")
        self._channel = channel
        self._on_wake = on_wake
        self._hears = self._warned = False
        self._failures = 0
        self._heard = float("-inf")

    def start(self) -> None:
        """Start the thread, unless LISTEN is off."""
        if conf.listen:
            super().start()

    def stop(self) -> None:
        """Stop the thread; returns when it has ended, or still hangs with its connection. Idempotent."""
        super().stop()
        self.join(_STOP_S)

    @property
    def listening(self) -> bool | Literal["off"]:
        """Whether wake-ups are heard now: proven at connection and since; "off" when disabled by the setting."""
        return self._hears and self.silent_for_s() < _PROVEN_FOR_S if conf.listen else "off"

    @property
    def is_direct(self) -> bool:
        """Whether sessions of the alias are the server's own: one hears, and no other URL is set for it."""
        return conf.listen is True and self.listening is True

    def silent_for_s(self) -> float:
        """Return the seconds since the last proof that the connection works; infinite before the first."""
        return time.monotonic() - self._heard

    def poll(self) -> float:
        """Listen until the connection breaks or the loop is stopped; return the seconds until the next connection."""
        try:
            with psycopg.connect(autocommit=True, **_parameters()) as connection:
                if self._hears_a_ping(connection):
                    self._failures = 0
                    self._listen(connection)
                    return 0.0
        except (psycopg.Error, Error) as error:
            log_event(logging.WARNING, events.LISTENER_LOST, error=str(error).strip())
            self._failures += 1
            return OUTAGE_WAITS.delay(self._failures).total_seconds()
        finally:
            self._hears = False
        if not self._warned and not self.stopping.is_set():
            self._warned = True
            log_event(logging.WARNING, events.LISTENER_DEAF, detail=_REMEDY)
        # Leave it to polling for a while; the retry notices a removed pooler without a restart.
        return _DEAF_RETRY_S

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
        give_up = time.monotonic() + _PING_WITHIN_S
        while time.monotonic() < give_up and not self.stopping.is_set():
            if payload in [ping.payload for ping in connection.notifies(timeout=_POLL_S, stop_after=1)]:
                connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(_PING_CHANNEL)))
                return True
        return False

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._hears, self._warned = True, False
        self._heard = time.monotonic()
        self._on_wake("")
        while not self.stopping.is_set():
            for notification in connection.notifies(timeout=_POLL_S, stop_after=1):
                self._heard = time.monotonic()
                self._on_wake(notification.payload)
            if self.silent_for_s() > _PING_S:
                connection.execute("SELECT 1")
                self._heard = time.monotonic()


def _parameters() -> dict[str, Any]:
    """Return connection parameters: the URL in LISTEN (a direct one next to a pooler), else Django's own settings."""
    if isinstance(conf.listen, str):
        return {"conninfo": conf.listen}
    parameters: dict[str, Any] = connections[conf.database].get_connection_params()
    for django_only in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(django_only, None)
    return parameters
