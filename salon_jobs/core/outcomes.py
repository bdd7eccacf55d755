"""The ways a run can end, and the exceptions with which a handler ends it early."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from salon_jobs.core.errors import Expired, NotRepeated, OutcomeUnknown, PayloadUnknown

DISCARDED: Final = "discarded"
CANCELLED: Final = "cancelled"
# Error classes in the records of runs that end their job as cancelled.
DISCARD_CLASS: Final = "salon_jobs.core.outcomes.Discard"
CANCEL_CLASS: Final = "salon_jobs.core.errors.CancelRequested"
_LONGEST_DELAY: Final = timedelta(days=36_500)


def _check_delay(of: str, delay: object) -> None:
    if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= _LONGEST_DELAY:
        raise ValueError(f"{of} takes a timedelta from zero to {_LONGEST_DELAY.days:,} days, not {delay}")


class Snooze(Exception):
    """Raise in a handler to run the job again after ``delay``; the attempt is not counted.

    The handler's transaction is rolled back. Raises ValueError below zero and above 36,500 days.
    """

    def __init__(self, delay: timedelta) -> None:
        _check_delay("Snooze", delay)
        super().__init__(delay)
        self.delay = delay


class Retry(Exception):
    """Raise in a handler to fail this attempt and have the job retried ``after`` a delay, instead of its backoff.

    The attempt is counted: after ``max_attempts`` the job fails. The recorded error is the cause or context of this
    one, or else this one. The handler's transaction is rolled back. Raises ValueError below zero and above 36,500 days.
    """

    def __init__(self, after: timedelta) -> None:
        _check_delay("Retry", after)
        super().__init__(f"to be retried after {after}")
        self.after = after

    @property
    def error(self) -> BaseException:
        return self.__cause__ or (None if self.__suppress_context__ else self.__context__) or self


class Discard(Exception):
    """Raise in a handler to end the job as cancelled (discarded) with ``reason``; it is never retried.

    The handler's transaction is rolled back.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned. ``finished`` is True when the row was finished inside the handler's transaction.

    ``callback_error`` is what an ``on_commit`` callback raised after that.
    """

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
    """The handler raised, or could not be called with this payload.

    ``retryable`` False fails the job at once: the payload can never fit, or its task does not retry this error.

    ``delay`` None stands for the task's backoff.
    """

    error: BaseException
    retryable: bool = True
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """A shutdown, a read-only server or an outage cut the run short: the job is requeued, the attempt is not counted.

    Not ``begun``: the outage came before the handler was called.
    """

    begun: bool = True


@dataclass(frozen=True, slots=True)
class Left:
    """The payload is of another version of the host's code: the job is requeued for a worker that runs that version.

    The attempt is not counted.
    """

    error: PayloadUnknown


@dataclass(frozen=True, slots=True)
class Lost:
    """Another run owns the job now, or its row is gone; there is nothing to write."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The server was promoted before it answered the COMMIT: it is unknown whether the run took effect."""

    error: OutcomeUnknown


@dataclass(frozen=True, slots=True)
class Split:
    """The chunk was rolled back: its jobs are requeued, no attempt is counted. ``alone``: each then runs by itself."""

    error: BaseException
    alone: bool = True


Outcome = Succeeded | Snoozed | Cancelled | NotStarted | Errored | Released | Left | Lost | Unknown | Split


def not_repeated(why: str) -> Errored:
    """Return the outcome of an interrupted run that must not be repeated."""
    return Errored(NotRepeated(f"{why}, and the task runs at most once"), retryable=False)
