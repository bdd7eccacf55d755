"""Listens for wake-ups on a connection of its own, the only one that is not Django's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.log_events import log_event

_LOOK_S = 0.5
_PING_S = 5.0
_RECONNECT_S = (0.2, 5.0)


class Listener:
    """Calls ``on_wake`` for each notification and after each (re)connect, since those sent meanwhile are lost.

    Polling goes on beside it, so a listener that can not connect costs latency, never jobs.
    """

    def __init__(self, channel: str, on_wake: Callable[[], None]) -> None:
        self._channel = channel
        self._on_wake = on_wake
        self._stop = threading.Event()
        self._heard = float("-inf")
        self._thread = threading.Thread(target=self._run, name="salon-jobs-listener", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it ended. Idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def silent_for_s(self) -> float:
        """Return the age in seconds of the last proof that the connection works; infinite before the first."""
        return time.monotonic() - self._heard

    def _run(self) -> None:
        delay = _RECONNECT_S[0]
        while not self._stop.is_set():
            try:
                with psycopg.connect(autocommit=True, **_parameters()) as connection:
                    delay = _RECONNECT_S[0]
                    self._listen(connection)
            except psycopg.Error as error:
                log_event(logging.WARNING, log_events.LISTENER_LOST, error=str(error).strip())
                self._stop.wait(delay)
                delay = min(delay * 2, _RECONNECT_S[1])

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._proven()
        self._on_wake()
        while not self._stop.is_set():
            for _ in connection.notifies(timeout=_LOOK_S, stop_after=1):
                self._proven()
                self._on_wake()
            if self.silent_for_s() > _PING_S:
                connection.execute("SELECT 1")
                self._proven()

    def _proven(self) -> None:
        self._heard = time.monotonic()


def _parameters() -> dict[str, Any]:
    """Return how to connect: LISTEN_URL when given (a direct one beside a pooler), else Django's own settings."""
    if conf.listen_url:
        return {"conninfo": conf.listen_url}
    parameters: dict[str, Any] = connections[conf.database].get_connection_params()
    for django_only in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(django_only, None)
    return parameters
