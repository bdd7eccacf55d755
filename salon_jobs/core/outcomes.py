"""The ways a run can end, and the two exceptions with which a handler ends it early."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from salon_jobs.core.errors import Expired, NotRepeated, OutcomeUnknown

DISCARDED: Final = "discarded"
CANCELLED: Final = "cancelled"
# Error classes in the records of runs that end their job as cancelled.
DISCARD_CLASS: Final = "salon_jobs.core.outcomes.Discard"
CANCEL_CLASS: Final = "salon_jobs.core.errors.CancelRequested"
_LONGEST_SNOOZE: Final = timedelta(days=36_500)


class Snooze(Exception):
    """Raise in a handler to run the job again after ``delay``; the attempt is not counted.

    The handler's transaction is rolled back. Raises ValueError below zero and above 36,500 days.
    """

    def __init__(self, delay: timedelta) -> None:
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= _LONGEST_SNOOZE:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Snooze takes a timedelta from zero to {_LONGEST_SNOOZE.days:,} days, not {delay}")
        super().__init__(delay)
        self.delay = delay


class Discard(Exception):
    """Raise in a handler to end the job as cancelled (discarded) with ``reason``; it is never retried.

    The handler's transaction is rolled back.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned. ``finished`` is True when the row was finished inside the handler's transaction."""

    finished: bool
    callback_error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to run later."""

    delay: timedelta


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The job ends without success: ``kind`` is discarded or cancelled, ``detail`` is for people."""

    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The job waited too long, or has expired: it is cancelled with an error row, and the attempt is not counted."""

    error: Expired


@dataclass(frozen=True, slots=True)
class Errored:
    """The handler raised. ``retryable`` False fails the job at once (it can never fit, or is not in ``retry_on``)."""

    error: BaseException
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """A shutdown, a read-only server or an outage cut the run short: the job is requeued, the attempt is not counted.

    Not ``begun``: the outage came before the handler was called.
    """

    begun: bool = True


@dataclass(frozen=True, slots=True)
class Lost:
    """Another run owns the job by now, or its row is gone; there is nothing to write."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The server was promoted before it answered the COMMIT: whether the run took effect cannot be known."""

    error: OutcomeUnknown


@dataclass(frozen=True, slots=True)
class Split:
    """The chunk was rolled back: its jobs are requeued, no attempt is counted. ``alone``: each then runs by itself."""

    error: BaseException
    alone: bool = True


Outcome = Succeeded | Snoozed | Cancelled | NotStarted | Errored | Released | Lost | Unknown | Split


def not_repeated(why: str) -> Errored:
    """Return the outcome of a run that was cut short and may not be repeated."""
    return Errored(NotRepeated(f"{why}, and the task runs at most once"), retryable=False)
