"""Errors of Azure Queue Storage, without its SDK."""

from __future__ import annotations

from salon_jobs.brokers.publisher import Verdict


class AzureFailure(Exception):
    """Meaning of an SDK error: a verdict, a stable code, and a text without secrets."""

    def __init__(self, verdict: Verdict, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.verdict = verdict
        self.code = code
        self.detail = detail


class NotOurs(Exception):
    """Raised when the message was deleted or delivered to another consumer in the meantime."""
