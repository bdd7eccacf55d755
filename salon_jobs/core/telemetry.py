"""Tells observers of runs and of final failures, without knowing who they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol
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


class FailureObserver(Protocol):
    """Receives each final failure once."""

    def __call__(self, failure: FinalFailure, /) -> None:
        """Report one failure; errors raised here are logged and change nothing."""


_observers: list[FailureObserver] = []


def observe_failures(observer: FailureObserver) -> None:
    """Add an observer; adding it twice is once."""
    if observer not in _observers:
        _observers.append(observer)


def report_failure(failure: FinalFailure) -> None:
    """Tell every observer; one that fails is logged, never the job's problem."""
    for observer in _observers:
        try:
            observer(failure)
        except BaseException:  # a job's exception may do anything when an observer shows it
            logger.exception("a failure observer raised for job %s", failure.job_id)


RunScope = Callable[[], AbstractContextManager[object] | None]
_NO_SCOPE: Final[AbstractContextManager[object]] = nullcontext()
_scopes: list[RunScope] = []


def surround_runs(scope: RunScope) -> None:
    """Enter ``scope()`` around each run, from its start to its written end; None: nothing for this run. Once each."""
    if scope not in _scopes:
        _scopes.append(scope)


def run_scope() -> AbstractContextManager[object]:
    """Return what holds the scopes added by ``surround_runs`` around one run."""
    scopes = [scope for make in _scopes if (scope := make()) is not None]
    if not scopes:
        return _NO_SCOPE
    stack = ExitStack()
    for scope in scopes:
        stack.enter_context(scope)
    return stack


Carrier = Callable[[], Mapping[str, str]]
_carriers: list[Carrier] = []


def carry_by(carrier: Carrier) -> None:
    """Have ``carrier()`` give the headers by which whoever receives a message continues this trace. Once each."""
    if carrier not in _carriers:
        _carriers.append(carrier)


def carried_headers() -> dict[str, str]:
    """Return the headers of the current trace; a carrier that fails is logged, and never the caller's problem."""
    headers: dict[str, str] = {}
    for carrier in _carriers:
        try:
            headers |= {name: value for name, value in carrier().items() if value and value.isprintable()}
        except Exception:
            logger.exception("a trace could not be carried")
    return headers
