"""Names what can go wrong with Azure Queue Storage, without its SDK."""

from __future__ import annotations

from salon_jobs.brokers.publisher import Verdict


class AzureFailure(Exception):
    """Says what an error of the SDK means: a verdict, a stable code, and a text that holds no secret."""

    def __init__(self, verdict: Verdict, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.verdict = verdict
        self.code = code
        self.detail = detail


class NotOurs(Exception):
    """The message was deleted meanwhile, or delivered to somebody else."""
