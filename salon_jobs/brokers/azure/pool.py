"""Lazy connection to Azure Queue Storage, and its errors: all that can be imported without the SDK."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Final

from salon_jobs.brokers.publisher import Verdict

if TYPE_CHECKING:
    from salon_jobs.brokers.azure.account import AzureAccount

# Requests of one pool in flight at once.
CONCURRENCY: Final = 16


class AzureFailure(Exception):
    """Meaning of an SDK error: a verdict, a stable code, and a text without secrets."""

    def __init__(self, verdict: Verdict, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.verdict = verdict
        self.code = code
        self.detail = detail


class NotOurs(Exception):
    """Raised when the message was deleted or delivered to another consumer in the meantime."""


class AzurePool:
    """The account of the settings, and threads for concurrent requests, both created at first use. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connecting = Lock()
        self._connected: tuple[AzureAccount, ThreadPoolExecutor] | None = None

    def connect(self) -> tuple[AzureAccount, ThreadPoolExecutor]:
        """Return the account and the threads. Raises ConfigurationError without the SDK or a connection string."""
        with self._connecting:
            if self._connected is None:
                # The SDK takes half a second to import; a web process, which only calls check, does without it.
                from salon_jobs.brokers.azure.account import AzureAccount  # noqa: PLC0415

                threads = ThreadPoolExecutor(CONCURRENCY, thread_name_prefix=self._name)
                self._connected = AzureAccount(), threads
            return self._connected

    def close(self) -> None:
        """Close the connections once requests in progress have ended. Idempotent; a later use opens new ones."""
        with self._connecting:
            connected, self._connected = self._connected, None
        if connected is not None:
            account, threads = connected
            threads.shutdown()
            account.close()
