"""Seam for the tracer (OpenTelemetry) and for the reporter of failures (Sentry). Imports neither.

Each is one object, or None: without them, asking costs one comparison.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Thread
from typing import Any, Final, Protocol, TypeVar, cast

from salon_jobs.core import events
from salon_jobs.core.events import JOB_SUCCEEDED, logging_errors
from salon_jobs.core.records import StoreId

T = TypeVar("T")
# The ``messaging.system`` of work that our own queue carries.
SYSTEM: Final = "salon_jobs"
# The number of characters that W3C asks everyone to propagate. More would be stored with each job and sent with each
# message, or make a message too large for its broker.
_LONGEST_HEADER: Final = 8192
_FAILED: Final = (
    events.JOB_FAILED,
    events.JOB_RETRIED,
    events.JOB_EXPIRED,
    events.JOB_LEASE_LOST,
    events.JOB_RELEASED,
    events.JOB_OUTCOME_UNKNOWN,
)


@dataclass(slots=True, kw_only=True)
class Sent:
    """The items that one call writes: ``count`` jobs of a task or, if ``emitted``, messages.

    Fields in which these differ are empty. ``message_id`` (of a single one), ``count`` and ``body_size`` may be set
    only when the context exits.
    """

    emitted: bool
    system: str = ""
    destination: str = ""
    name: str = ""
    count: int = 1
    message_id: str = ""
    body_size: int | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a job. ``ended``, the name of the log event of its end, is final when the context exits.

    ``reported`` are the errors that the handler itself has reported; a reporter that can tell sets them.
    """

    task: str
    job_id: int
    queue: str
    store_id: StoreId | None
    attempt: int
    waited_s: float
    body_size: int
    headers: Mapping[str, str]
    tick: datetime | None
    ended: str = JOB_SUCCEEDED
    error: BaseException | None = None
    trace_id: str | None = None
    reported: Container[BaseException] = ()

    @property
    def has_failed(self) -> bool:
        """Whether the run ended without success, neither at its handler's request nor at an operator's."""
        return self.ended in _FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMessage:
    """A message that a relay publishes, or that ``consumer`` turns into a job."""

    system: str
    destination: str
    event: str
    message_id: str
    store_id: StoreId | None
    body_size: int
    headers: Mapping[str, str]
    consumer: str = ""
    deliveries: int = 1


class Tracer(Protocol):
    """Observer of enqueues, emits, runs and messages. Its errors are logged and affect nothing else."""

    def sending(self, sent: Sent, /) -> AbstractContextManager[object]:
        """Wrap an enqueue or an emit; an error raised inside marks it as failed."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers with which a receiver continues the current trace."""
        ...

    def running(self, run: Run, /) -> AbstractContextManager[object]:
        """Wrap one run, from its start until its end is written, on the thread of the run."""
        ...

    def consuming(self, message: TracedMessage, /) -> AbstractContextManager[Mapping[str, str]]:
        """Wrap the enqueue of one message's job, perhaps one of many; yields the headers that the job continues."""
        ...

    def published(self, message: TracedMessage, /, *, began_ns: int, ended_ns: int, code: str) -> None:
        """Record one attempt to publish, with its times in ns since 1970; ``code`` is the cause of a failure."""
        ...

    def trace_id(self) -> str | None:
        """Return the id of the current trace, for log records."""
        ...

    def flush(self) -> None:
        """Send buffered data, before the process ends; there is no time limit."""
        ...


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """A job that will not be retried. ``reported``: the handler itself has already reported the error."""

    job_id: int
    task: str
    store_id: StoreId | None
    attempt: int
    error: BaseException
    reported: bool = False


@dataclass(frozen=True, slots=True)
class MessageFailure:
    """A message of a relay, or of the consumer named by ``consumer``, that waits for an operator."""

    message_id: str
    destination: str
    event: str
    store_id: StoreId | None
    code: str
    attempt: int
    consumer: str = ""


class Reporter(Protocol):
    """Observer of final failures. Its errors are logged and affect nothing else."""

    def is_active(self) -> bool:
        """Return whether to call it now; must be cheap."""
        ...

    def running(self, run: Run, /) -> AbstractContextManager[object]:
        """Wrap one run, inside the tracer's span."""
        ...

    def report(self, failure: FinalFailure | MessageFailure, /) -> None:
        """Report one failure; called once for each."""
        ...

    def flush(self) -> None:
        """Send buffered data, before the process ends; there is no time limit."""
        ...


_tracer: Tracer | None = None
_reporter: Reporter | None = None


def trace_by(tracer: Tracer | None) -> None:
    """Make this the process's tracer; None for no tracing."""
    global _tracer  # noqa: PLW0603 - one a process
    _tracer = tracer


def report_by(reporter: Reporter | None) -> None:
    """Make this the process's reporter; None for no reports."""
    global _reporter  # noqa: PLW0603 - one a process
    _reporter = reporter


def is_traced() -> bool:
    """Return whether there is a tracer."""
    return _tracer is not None


def is_observed() -> bool:
    """Return whether a run has an observer: a tracer, or a reporter that is active."""
    return _tracer is not None or (_reporter is not None and _reporter.is_active())


@contextmanager
def sending(sent: Sent) -> Generator[None]:
    """Wrap an enqueue or an emit."""
    with ExitStack() as scopes:
        if (tracer := _tracer) is not None:
            _enter(scopes, partial(tracer.sending, sent))
        yield


@contextmanager
def observing(run: Run) -> Generator[None]:
    """Wrap one run."""
    with ExitStack() as scopes:
        if (tracer := _tracer) is not None:
            _enter(scopes, partial(tracer.running, run))
        if (reporter := _reporter) is not None and reporter.is_active():
            _enter(scopes, partial(reporter.running, run))
        yield


@contextmanager
def consuming(messages: Sequence[T], describe: Callable[[T], TracedMessage]) -> Generator[list[str | None]]:
    """Wrap the enqueue of the jobs of ``messages``; yields the trace that each job keeps."""
    with ExitStack() as scopes:
        tracer = _tracer
        if tracer is None:
            yield [None] * len(messages)
            return
        traces: list[str | None] = []
        for message in map(describe, messages):
            headers = _enter(scopes, partial(tracer.consuming, message))
            traces.append(_as_text(_carried(headers or {})))
        yield traces


def published(message: TracedMessage, *, began_ns: int, ended_ns: int, code: str) -> None:
    """Record one attempt of a relay to publish."""
    if _tracer is not None:
        with logging_errors("the tracer failed"):
            _tracer.published(message, began_ns=began_ns, ended_ns=ended_ns, code=code)


def current_headers() -> dict[str, str]:
    """Return the headers with which a receiver continues the current trace; empty without one."""
    if _tracer is not None:
        with logging_errors("the tracer failed"):
            return _carried(_tracer.headers())
    return {}


def current_trace() -> str | None:
    """Return the same headers as the JSON kept with a job; None when there are none."""
    return _as_text(current_headers())


def current_trace_id() -> str | None:
    """Return the id of the current trace."""
    if _tracer is not None:
        with logging_errors("the tracer failed"):
            return _tracer.trace_id()
    return None


def report_failure(failure: FinalFailure | MessageFailure) -> None:
    """Report a failure; an error of the reporter is logged and never affects the job."""
    if _reporter is not None:
        subject = f"job {failure.job_id}" if isinstance(failure, FinalFailure) else f"message {failure.message_id}"
        with logging_errors("the reporter of failures raised for %s", subject):
            _reporter.report(failure)


def flush(timeout_s: float) -> None:
    """Flush tracer and reporter, for ``timeout_s`` at most; for processes that exit without running exit handlers."""

    def flush_one(observer: Tracer | Reporter) -> None:
        with logging_errors("an observer could not flush"):
            observer.flush()

    # In separate threads: an agent that does not answer must not delay the exit.
    threads = [Thread(target=flush_one, args=(each,), daemon=True) for each in (_tracer, _reporter) if each is not None]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def headers_of(trace: str | None) -> dict[str, str]:
    """Parse the headers kept with a job or a message; ignore anything else kept there."""
    try:
        headers: object = json.loads(trace) if trace else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(headers, dict):
        return {}
    return {name: value for name, value in cast("dict[str, object]", headers).items() if isinstance(value, str)}


def _enter(scopes: ExitStack, make: Callable[[], AbstractContextManager[T]]) -> T | None:
    """Enter a context of an observer, logging its own errors at its start and at its end."""

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        with logging_errors("an observer could not end"):
            try:
                scope.__exit__(kind, error, traceback)
            except BaseException as fault:
                if fault is not error:
                    raise

    with logging_errors("an observer could not begin"):
        scope = make()
        value = scope.__enter__()
        scopes.push(leave)
        return value
    return None


def _carried(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if value and value.isprintable() and len(value) <= _LONGEST_HEADER
    }


def _as_text(headers: Mapping[str, str]) -> str | None:
    return json.dumps(headers) if headers else None
