"""One connection to NATS, with its event loop and thread.

The client's own reconnecting is off: after a lost connection, it would later send the rest of its buffer, when another
relay may own those messages; nor does it support jitter. A lost connection is dropped, and a new one is made here.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import msgspec

from salon_jobs.brokers.nats.protocol import Fault
from salon_jobs.brokers.nats.settings import nats_settings
from salon_jobs.brokers.publisher import PublishFailure, Verdict
from salon_jobs.brokers.sender import BrokerError
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.vital import exits_on_error

try:
    from nats import errors
    from nats.aio.client import Client
    from nats.js import api
except ImportError as missing:
    raise ConfigurationError("NATS needs its client library: pip install 'salon-jobs[nats]'") from missing

# The library is imported only here, so that one place names the package to install.
__all__ = ["NatsConnection", "Unreachable", "api", "describe", "errors"]

T = TypeVar("T")


class Answer(Protocol):
    """Answer of JetStream's API."""

    @property
    def error(self) -> Fault | None:
        """The fault that the server reports, if any."""


A = TypeVar("A", bound=Answer)
# A silent connection is noticed after about three of these.
_PING_INTERVAL_S: Final = 10
_CLOSE_S: Final = 1.0
_CANCEL_AGAIN_S: Final = 0.1


class Unreachable(BrokerError):
    """Raised when there is no usable connection to NATS."""

    def __init__(self, detail: str, *, code: str = "NATS.UNREACHABLE") -> None:
        super().__init__(PublishFailure(Verdict.OUTAGE, code, detail))


class NatsConnection:
    """Connection made at first use and after a loss. Its loop owns all methods but ``ping``, ``run`` and ``close``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # The client, while it is connected.
        self.connected: Any = None
        self._connecting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._tried = asyncio.Event()
        self._refusal = Unreachable("no connection within the timeout", code="NATS.TIMEOUT")
        self._discovered: list[str] = []
        self.last_error = ""

    async def on_connected(self, client: Any) -> None:
        """Prepare a new client, before anyone else gets it."""

    def on_lost(self, error: Unreachable) -> None:
        """React to the loss of the connection."""

    def ping(self) -> None:
        """Check readiness with a ping. Raises NotReady."""
        self.run(self.probe())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread and return its result."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=exits_on_error(self._loop.run_forever), name="salon_jobs-nats", daemon=True
                )
                self._thread.start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def close(self) -> None:
        """Close the connection and end the thread. Idempotent; a later ``run`` starts a new one."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._shut(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def client(self) -> Any:
        """Return a connected client. Raises Unreachable when the next attempt fails, or after the timeout."""
        if self.connected is None:
            if self._connecting is None or self._connecting.done():
                self._tried.clear()
                self._connecting = asyncio.create_task(self._connect())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), nats_settings.timeout.total_seconds())
        if self.connected is None:
            raise self._refusal
        return self.connected

    async def request(self, subject: str, body: bytes) -> bytes:
        """Send a request to a server's service and return the answer. Raises Unreachable, also without an answer."""
        client = await self.client()
        try:
            answer = await client.request(subject, body, timeout=nats_settings.timeout.total_seconds())
        except errors.NoRespondersError:
            raise Unreachable(
                f"no answer from {subject}: JetStream is off or has no leader", code="NATS.NO_LEADER"
            ) from None
        except (errors.Error, TimeoutError, OSError) as error:
            raise Unreachable(f"{subject}: {describe(error)}", code="NATS.TIMEOUT") from error
        return bytes(answer.data)

    async def query(self, subject: str, query: dict[str, object], read: Callable[[bytes], A]) -> A:
        """Query JetStream's API, in the domain of the settings. Raises Unreachable, unless nothing was found (404)."""
        prefix = f"$JS.{nats_settings.domain}.API" if nats_settings.domain else "$JS.API"
        answer = read(await self.request(f"{prefix}.{subject}", msgspec.json.encode(query)))
        if answer.error is not None and answer.error.code != 404:
            raise Unreachable(answer.error.description, code=f"NATS.{answer.error.err_code}")
        return answer

    async def probe(self) -> None:
        """Drop the connection if the server does not answer on it. Raises Unreachable."""
        await self.flush(await self.client(), timeout_s=min(5.0, nats_settings.timeout.total_seconds()))

    async def flush(self, client: Any, *, timeout_s: float) -> None:
        """Wait until the server has read the sent data. Drop the connection if it does not answer in time.

        It would be unusable: the client's reading ends when the answer comes late. Raises Unreachable.
        """
        try:
            await client.flush(timeout=timeout_s)
        except (errors.Error, TimeoutError, OSError) as error:
            silent = Unreachable(f"no answer to a ping: {describe(error)}", code="NATS.TIMEOUT")
            await self._drop(client, silent)
            raise silent from error

    async def _connect(self) -> None:
        """Try every server, repeatedly, until one answers or the attempts are used up."""
        for attempt in range(nats_settings.max_reconnects + 1):
            if attempt:
                self._tried.clear()
                jitter_s = random.uniform(0, nats_settings.jitter.total_seconds())  # noqa: S311
                await asyncio.sleep(nats_settings.reconnect_wait.total_seconds() + jitter_s)
            servers = [*nats_settings.server, *(url for url in self._discovered if url not in nats_settings.server)]
            for server in random.sample(servers, len(servers)):
                try:
                    await self._connect_to(server)
                except Unreachable as refusal:
                    self._refusal = refusal
                else:
                    self._tried.set()
                    return
            self._tried.set()

    async def _connect_to(self, server: str) -> None:
        client = Client()
        self.last_error = ""

        async def failed(error: Exception) -> None:
            self.last_error = describe(error)

        async def lost() -> None:
            if self.connected is client:
                self.connected = None
                reason = f": {self.last_error}" if self.last_error else ""
                self.on_lost(Unreachable(f"the connection was lost{reason}"))

        try:
            options = self._options(client)
        except OSError as error:  # includes SSLError
            raise Unreachable(f"the TLS files cannot be read: {describe(error)}", code="NATS.TLS_FILES") from error
        connecting = client.connect(
            server, error_cb=failed, closed_cb=lost, skip_subject_validation=True, **options
        )  # our subjects are valid by construction
        try:
            await asyncio.wait_for(connecting, nats_settings.timeout.total_seconds())
            if nats_settings.tls and not _offers_tls(client):
                raise errors.Error("the server offers no TLS, which the settings demand")
            await self.on_connected(client)
        except (errors.Error, TimeoutError, OSError, ValueError) as error:
            self._end(client)
            reason = self.last_error or describe(error)
            code = "NATS.AUTHORIZATION" if "authorization" in reason.lower() else "NATS.UNREACHABLE"
            raise Unreachable(f"{server}: {reason}", code=code) from error
        except asyncio.CancelledError:
            self._end(client)
            raise
        self._discovered = [uri.geturl() for uri in client.discovered_servers]
        self.connected = client

    def _options(self, client: Any) -> dict[str, Any]:

        def secret(value: str | None) -> Callable[[], str] | None:
            """Wrap a secret in a callback: the client calls it once it knows whether the server offers TLS."""
            if value is None:
                return None

            def reveal() -> str:
                if nats_settings.tls and not _offers_tls(client):
                    raise errors.Error("the server offers no TLS, which the settings demand")
                return value

            return reveal

        tls = ssl.create_default_context(cafile=nats_settings.tls_ca_file) if nats_settings.tls else None
        if tls and nats_settings.tls_certificate_files:
            tls.load_cert_chain(*nats_settings.tls_certificate_files)
        user, password = nats_settings.user or (None, None)
        return {
            "name": nats_settings.client_name,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": nats_settings.timeout.total_seconds(),
            "ping_interval": _PING_INTERVAL_S,
            "user": secret(user),
            "password": secret(password),
            "token": secret(nats_settings.token),
            "user_credentials": nats_settings.credentials_file,
            "tls": tls,
        }

    async def _drop(self, client: Any, why: Unreachable) -> None:
        if self.connected is client:
            self.connected = None
            self.on_lost(why)
        self._end(client)

    def _end(self, client: Any) -> None:
        """Close a client in the background, because after a failed TLS handshake closing never returns."""
        task = asyncio.create_task(asyncio.wait_for(client.close(), _CLOSE_S))
        self._ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # retrieves the error; a client that cannot be closed is abandoned

    async def _shut(self) -> None:
        if self._connecting is not None:
            await _cancelled({self._connecting})
            self._tried.set()
        if self.connected is not None:
            await self._drop(self.connected, Unreachable("the connection was closed"))
        # Threads that still wait for work here must get an answer; a stopped loop would give none.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            _, late = await asyncio.wait(others, timeout=_CLOSE_S)
            await _cancelled(late)


def describe(error: BaseException) -> str:
    """Describe an error in one line, never empty."""
    return str(error) or type(error).__name__


def _offers_tls(client: Any) -> bool:
    return bool(client._server_info.get("tls_required"))


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they end: before Python 3.12, ``wait_for`` drops a cancellation that meets the result."""
    ended: set[asyncio.Task[Any]] = set()
    while tasks:
        for task in tasks:
            task.cancel()
        done, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)
        ended |= done
    await asyncio.gather(*ended, return_exceptions=True)  # retrieves their errors
