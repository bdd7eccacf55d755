"""Tells observers of final failures, of jobs and of messages, without knowing who they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from salon_jobs.core.log_events import logger


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """Describes a job that will not be retried. ``payload`` is for observers that were asked to carry it."""

    job_id: int
    task: str
    store_id: UUID | None
    attempt: int
    error: BaseException
    payload: str | None


@dataclass(frozen=True, slots=True)
class MessageFailure:
    """Describes a message that waits for an operator: of a relay, or of a consumer, which ``consumer`` then names."""

    message_id: str
    destination: str
    event: str
    store_id: UUID | None
    code: str
    attempt: int
    consumer: str = ""


class FailureObserver(Protocol):
    """Receives each final failure once."""

    def __call__(self, failure: FinalFailure | MessageFailure, /) -> None:
        """Report one failure; errors raised here are logged and change nothing."""


_observers: list[FailureObserver] = []


def observe_failures(observer: FailureObserver) -> None:
    """Add an observer; adding it twice is once."""
    if observer not in _observers:
        _observers.append(observer)


def report_failure(failure: FinalFailure | MessageFailure) -> None:
    """Tell every observer; one that fails is logged, never the job's problem."""
    for observer in _observers:
        try:
            observer(failure)
        except BaseException:  # a job's exception may do anything when an observer shows it
            subject = f"job {failure.job_id}" if isinstance(failure, FinalFailure) else f"message {failure.message_id}"
            logger.exception("a failure observer raised for %s", subject)
