"""Real SMTP server on the loopback interface that starts down, can be brought up, and keeps the mails it receives."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections import Counter
from email import message_from_bytes
from email.policy import default as default_policy
from types import TracebackType
from typing import Final, Self

from aiosmtpd.smtp import SMTP, Envelope, Session

REJECTED_DOMAIN: Final = "nobody.example"
_MESSAGE_ID: Final = re.compile(r"<invitation-(?P<id>[0-9a-f-]{36})@")
_STOP_TIMEOUT_S: Final = 10.0


class LocalSmtp:
    """SMTP server with a port of its own; it refuses connections until ``up``. Counts mails by invitation.

    Recipients at ``REJECTED_DOMAIN`` are permanently rejected (550). Safe to read from any thread. ``close`` is
    idempotent.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused, and the port is ours
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._mails: Counter[str] = Counter()
        self._recipients: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()

    @property
    def port(self) -> int:
        """Port, the same while down and up."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def mails(self) -> Counter[str]:
        """Number of mails received, by invitation ID."""
        with self._lock:
            return self._mails.copy()

    @property
    def recipients(self) -> Counter[str]:
        """Number of mails received, by recipient."""
        with self._lock:
            return self._recipients.copy()

    @property
    def rejected(self) -> Counter[str]:
        """Number of rejected recipients, by address."""
        with self._lock:
            return self._rejected.copy()

    def up(self) -> None:
        """Start accepting connections; return when the server does. Call this only once."""
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop, ready), name="local-smtp", daemon=True)
        self._thread.start()
        if not ready.wait(_STOP_TIMEOUT_S):
            raise TimeoutError("the local SMTP server did not start")

    def close(self) -> None:
        """Stop accepting connections and release the port."""
        if self._loop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_TIMEOUT_S)
        self._socket.close()

    def __enter__(self) -> Self:
        """Return self; the port is reserved, the server down."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def handle_RCPT(  # noqa: N802 - the name aiosmtpd calls
        self, server: SMTP, session: Session, envelope: Envelope, address: str, rcpt_options: list[str]
    ) -> str:
        """Accept a recipient, or reject it permanently."""
        if address.endswith(f"@{REJECTED_DOMAIN}"):
            with self._lock:
                self._rejected[address] += 1
            return "550 5.1.1 no such mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        """Count a mail for the invitation its Message-ID names."""
        content = envelope.content if isinstance(envelope.content, bytes) else (envelope.content or "").encode()
        found = _MESSAGE_ID.search(str(message_from_bytes(content, policy=default_policy)["Message-ID"]))
        if found is None:
            return "554 5.6.0 the Message-ID names no invitation"
        with self._lock:
            self._mails[found["id"]] += 1
            self._recipients.update(envelope.rcpt_tos)
        return "250 OK"

    def _serve(self, loop: asyncio.AbstractEventLoop, ready: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(
            loop.create_server(lambda: SMTP(self, loop=loop, enable_SMTPUTF8=True), sock=self._socket)
        )
        ready.set()
        try:
            loop.run_forever()
        finally:
            server.close()
            for pending in asyncio.all_tasks(loop):
                pending.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
