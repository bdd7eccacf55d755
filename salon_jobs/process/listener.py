"""The connection that LISTENs for wake-ups."""

from __future__ import annotations

import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal
from weakref import finalize

import psycopg
from django.db import Error, connections
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from salon_jobs.conf import settings as conf
from salon_jobs.core import events
from salon_jobs.core.events import log_event
from salon_jobs.db.read_only import reports_read_only
from salon_jobs.process.loop import OUTAGE_WAITS, Loop

_POLL_S = 0.5
_PING_S = 2.0
_PROVEN_FOR_S = 3 * _PING_S
_STOP_S = 2.0
# ``poll`` waits for whole milliseconds only, and a worker that expects more jobs waits for less.
_TICK_S = 0.001
# How often a process that leaves many wake-ups to another reads the state of the other: a read costs as much as a small
# job.
_REST_S = 0.02
# Behind a transaction-mode pooler LISTEN succeeds but no notification ever arrives, so our own ping must arrive first.
# It has its own channel: a pooled connection keeps listening to the channels of earlier clients.
_PING_CHANNEL = "salon_jobs_ping"
_PING_WITHIN_S = 5.0
_DEAF_RETRY_S = 60.0
_REMEDY = (
    "notifications do not arrive: is a transaction-mode pooler in between? Set SALON_JOBS['LISTEN'] to the URL of the"
    " same database on the server itself, or to False; jobs are found by polling"
)


class ListenerEvent(threading.Event):
    """Event with one waiter, which also reads a listener's connection and acts on notifications.

    If another thread read it, each wake-up would take one more thread switch, and the interpreter's lock with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
            finalize(self, end.close)
        # Held while the waiter reads: a connection may be closed only once it is no longer read.
        self._reading = threading.RLock()
        self._read: Callable[[], bool] = bool
        self._poll_of_none = self._poll = self._make_poll()
        self._is_reading = self._has_read = False
        # When it last read notifications for others.
        self._read_at = float("-inf")

    def set(self) -> None:
        if not self.is_set():
            super().set()
            # A waiter that acts on a notification checks the event next anyway.
            if not self._is_reading:
                self.end_poll()

    def clear(self) -> None:
        """Read notifications unless the waiter just did, so that one that never waits reads too; then clear."""
        if not self._has_read:
            self._read_within(0.0)
        self._has_read = False
        super().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, reading notifications. One thread at a time."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (left_s := end - time.monotonic()) > 0:
            if left_s < _TICK_S:
                time.sleep(left_s)
                continue
            if self._read_within(min(left_s, _POLL_S)) and not self.is_set():
                if time.monotonic() - self._read_at < _REST_S:
                    self._poll_of_none.poll(min(left_s, _REST_S) / _TICK_S)
                self._read_at = time.monotonic()
        return self.is_set()

    def attach(self, file: int, read: Callable[[], bool]) -> None:
        """Have the waiter call ``read`` when the file can be read, and at least twice a second.

        It returns whether the next notification can wait for ``_REST_S``.
        """
        self._read, self._poll = read, self._make_poll(file)
        self.end_poll()

    def detach(self) -> None:
        """Stop the waiter from reading; return when it no longer reads, so that the file can be closed."""
        with self._reading:
            self._read, self._poll = bool, self._poll_of_none

    def _read_within(self, timeout_s: float) -> bool:
        ready = [file for file, _ in self._poll.poll(int(timeout_s / _TICK_S))]
        if self._receiver.fileno() in ready:
            with suppress(BlockingIOError):
                self._receiver.recv(4096)
        self._is_reading = True
        with self._reading:
            can_rest = self._read()
        self._is_reading, self._has_read = False, True
        return can_rest

    def end_poll(self) -> None:
        """Have the waiter read now."""
        with suppress(BlockingIOError):
            self._sender.send(b"!")

    def _make_poll(self, *files: int) -> select.poll:
        poll = select.poll()
        for file in (self._receiver.fileno(), *files):
            poll.register(file, select.POLLIN)
        return poll


class Listener(Loop):
    """Loop that calls ``on_wake`` with each notification's payload, and after each (re)connect.

    If it returns True, the notification was for other listeners; after many of these, the next may wait for 20 ms.

    With an ``event``, its waiter reads the notifications instead of this thread, which only connects and proves the
    connection. With ``send`` this thread reads, and sends the statement that ``send`` returns, if any: on request
    (``send_soon``), and at least twice a second.

    Notifications sent while it was disconnected are lost. Polling continues alongside, so a listener that cannot
    connect or receives nothing costs latency, never jobs. With the setting LISTEN off it does nothing.
    """

    def __init__(
        self,
        channel: str,
        on_wake: Callable[[str], object],
        event: ListenerEvent | None = None,
        *,
        using: str,
        send: Callable[[], str] | None = None,
    ) -> None:
        super().__init__("listener", using=using)
        self._send = send
        if send is not None:
            self.woken = event = ListenerEvent()
        self._channel = channel
        self._on_wake = on_wake
        self._event = event
        # A pooler may report another server's answer; a standby refuses LISTEN.
        self._is_listening = self._warned = self._began_read_only = False
        self._failures = 0
        self._failure: psycopg.Error | None = None
        self._proven_at = float("-inf")

    def start(self) -> None:
        """Start the thread, unless LISTEN is off."""
        if conf.listen:
            super().start()

    def stop(self) -> None:
        """Stop the thread; return when it has ended, or after two seconds if its connection hangs. Idempotent."""
        super().stop()
        self.join(_STOP_S)

    @property
    def listening(self) -> bool | Literal["off"]:
        """Whether wake-ups arrive, as proven on connecting and since; "off" if the setting disables it."""
        return self._is_listening and self.silent_for_s() < _PROVEN_FOR_S if conf.listen else "off"

    @property
    def is_direct(self) -> bool:
        """Whether no pooler is in between: wake-ups arrive, and LISTEN names no other URL for them."""
        return conf.listen is True and self.listening is True

    def send_soon(self) -> None:
        """Have the statement of ``send`` sent now, if this is connected. Thread-safe."""
        if self._event is not None:
            self._event.end_poll()

    def silent_for_s(self) -> float:
        """Return the seconds since the last proof that the connection works; infinite before the first."""
        return time.monotonic() - self._proven_at

    def poll(self) -> float:
        """Listen until the connection breaks or the loop is stopped; return the seconds until the next connection."""
        try:
            with psycopg.connect(autocommit=True, **_parameters(self.using)) as connection:
                if self._receives_a_ping(connection):
                    self._failures = 0
                    self._listen(connection)
                    return 0.0
        except (psycopg.Error, Error) as error:
            log_event(logging.WARNING, events.LISTENER_LOST, error=str(error).strip())
            self._failures += 1
            return OUTAGE_WAITS.delay(self._failures).total_seconds()
        finally:
            self._is_listening = False
        if not self._warned and not self.stopping.is_set():
            self._warned = True
            log_event(logging.WARNING, events.LISTENER_DEAF, detail=_REMEDY)
        # Leave it to polling for a while; the retry notices a removed pooler without a restart.
        return _DEAF_RETRY_S

    def _receives_a_ping(self, connection: psycopg.Connection[Any]) -> bool:
        """Listen for a ping sent on the connection that enqueues jobs; return False if it does not arrive.

        Our own connection would prove nothing: a pooler may route the ping to the very server connection that listens.
        """
        payload = secrets.token_hex(8)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(_PING_CHANNEL)))
        try:
            with connections[self.using].cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, %s)", [_PING_CHANNEL, payload])
        finally:
            connections[self.using].close()
        give_up = time.monotonic() + _PING_WITHIN_S
        while time.monotonic() < give_up and not self.stopping.is_set():
            if payload in [ping.payload for ping in connection.notifies(timeout=_POLL_S, stop_after=1)]:
                connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(_PING_CHANNEL)))
                return True
        return False

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        self._is_listening, self._warned = True, False
        self._began_read_only = reports_read_only(connection.pgconn)
        self._proven_at = time.monotonic()
        if (event := self._event) is not None:
            # Its waiter reads until it finds the connection broken or the loop is stopped.
            self._failure = None
            event.attach(connection.fileno(), partial(self._receive, connection.pgconn, event))
            self._on_wake("")
            self.woken.wait()
            event.detach()
            connection.close()  # an answer may still be outstanding
            if self._failure is not None:
                raise self._failure
            return
        self._on_wake("")
        while not self.stopping.is_set():
            for notification in connection.notifies(timeout=_POLL_S, stop_after=1):
                self._proven_at = time.monotonic()
                self._on_wake(notification.payload)
            if self.silent_for_s() > _PING_S:
                connection.execute("SELECT 1")
                self._require_primary(connection.pgconn)
                self._proven_at = time.monotonic()

    def _require_primary(self, server: PGconn) -> None:
        """Raise OperationalError if the server has become read-only: no notifications are sent there any more."""
        if reports_read_only(server) and not self._began_read_only:
            raise psycopg.OperationalError("the server has become read-only")

    def _receive(self, server: PGconn, event: ListenerEvent) -> bool:
        """Act on notifications that have arrived, without waiting; query the server for a sign of life after a silence.

        Returns whether there were notifications, all of them for others.
        """
        for_others: set[bool] = set()
        try:
            server.consume_input()
            while not server.is_busy() and server.get_result() is not None:
                self._require_primary(server)
                self._proven_at = time.monotonic()
            while (notification := server.notifies()) is not None:
                self._proven_at = time.monotonic()
                for_others.add(self._on_wake(notification.extra.decode(errors="replace")) is True)
            if server.transaction_status == TransactionStatus.IDLE:
                if self._send is not None and (statement := self._send()):
                    server.send_query(statement.encode())
                elif self.silent_for_s() > _PING_S:
                    server.send_query(b"SELECT 1")
        except psycopg.Error as error:
            event.detach()
            self._failure = error
            self.wake()
        return for_others == {True}


def _parameters(using: str) -> dict[str, Any]:
    """Return connection parameters: the URL in LISTEN (a direct one next to a pooler), else Django's own settings."""
    if isinstance(conf.listen, str):
        return {"conninfo": conf.listen}
    parameters: dict[str, Any] = connections[using].get_connection_params()
    for django_only in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(django_only, None)
    return parameters
