"""Observer interface for tracing and for final failures. Imports no tracing tool."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast
from uuid import UUID

from salon_jobs.core import events
from salon_jobs.core.events import JOB_SUCCEEDED, contained

T = TypeVar("T")
# The ``messaging.system`` of work carried by our own queue.
SYSTEM: Final = "salon_jobs"
# The number of characters W3C asks everyone to propagate. More would be stored with each job and sent with each
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
    """What one call writes: ``count`` jobs of a task, or messages. Fields in which these differ are empty.

    ``message_id`` (of a single one), ``count`` and ``body_size`` may be set only when the context exits.
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

    ``reported`` are the errors that the handler itself has reported, which a tracer that knows them sets.
    """

    task: str
    job_id: int
    queue: str
    store_id: UUID | None
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
        """Whether the run ended without success, neither by its handler's wish nor by an operator's."""
        return self.ended in _FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One message that ``consumer`` turns into a job."""

    consumer: str
    system: str
    destination: str
    event: str
    message_id: str
    store_id: UUID | None
    deliveries: int
    body_size: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One attempt of a relay to publish a message; times are in ns since 1970. ``code`` says why it failed."""

    system: str
    destination: str
    event: str
    message_id: str
    store_id: UUID | None
    created_at_s: float
    began_ns: int
    ended_ns: int
    count: int
    body_size: int
    headers: Mapping[str, str]
    code: str = ""


class Tracer(Protocol):
    """Observer of enqueues, emits, runs and messages. Its errors are logged and affect nothing else."""

    def is_active(self) -> bool:
        """Return whether to call it now; must be cheap."""
        ...

    def sending(self, sent: Sent, /) -> AbstractContextManager[object]:
        """Wrap an enqueue or an emit; an error raised inside marks it as failed."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return the headers with which a receiver continues the current trace."""
        ...

    def running(self, run: Run, /) -> AbstractContextManager[object]:
        """Wrap one run, from its start until its end is written, on the thread of the run."""
        ...

    def consuming(self, message: Received, /) -> AbstractContextManager[Mapping[str, str]]:
        """Wrap the enqueue of one message's job, perhaps one of many; yields the headers that the job continues."""
        ...

    def published(self, message: Published, /) -> None:
        """Record one attempt to publish."""
        ...

    def trace_id(self) -> str | None:
        """Return the id of the current trace, for log records."""
        ...

    def flush(self) -> None:
        """Send what is buffered, before the process ends; there is no time limit."""
        ...


_tracers: list[Tracer] = []


def trace_by(tracer: Tracer) -> None:
    """Add a tracer; adding it twice has no effect."""
    if tracer not in _tracers:
        _tracers.append(tracer)


def active_tracers() -> list[Tracer]:
    """Return the tracers that are active now."""
    return [tracer for tracer in _tracers if tracer.is_active()] if _tracers else []


def sending(sent: Sent) -> AbstractContextManager[object]:
    """Wrap an enqueue or an emit."""
    return _Scopes([partial(tracer.sending, sent) for tracer in active_tracers()])


def tracing_run(run: Run) -> AbstractContextManager[object]:
    """Wrap one run."""
    return _Scopes([partial(tracer.running, run) for tracer in active_tracers()])


@contextmanager
def consuming(messages: Sequence[T], describe: Callable[[T], Received]) -> Generator[list[str | None]]:
    """Wrap the enqueue of the jobs of ``messages``; yields the trace that each job keeps."""
    tracers = active_tracers()
    if not tracers:
        yield [None] * len(messages)
        return
    with ExitStack() as stack:
        traces: list[str | None] = []
        for message in map(describe, messages):
            scopes = _Scopes([partial(tracer.consuming, message) for tracer in tracers])
            stack.enter_context(scopes)
            traces.append(_as_text(_joined(scopes.values)))
        yield traces


def current_headers() -> dict[str, str]:
    """Return the headers with which a receiver continues the current trace; empty without one."""
    return _joined([_tried(tracer.headers) or {} for tracer in active_tracers()])


def current_trace() -> str | None:
    """Return the same headers as the JSON kept with a job; None when there are none."""
    return _as_text(current_headers()) if _tracers else None


def current_trace_id() -> str | None:
    """Return the current trace id of the first tracer that has one."""
    return next((trace_id for tracer in active_tracers() if (trace_id := _tried(tracer.trace_id))), None)


def flush(timeout_s: float) -> None:
    """Flush all tracers, for ``timeout_s`` at most; for processes that exit without running exit handlers."""
    # In separate threads: an agent that does not answer must not delay the exit.
    threads = [Thread(target=_tried, args=(tracer.flush,), daemon=True) for tracer in active_tracers()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def headers_of(trace: str | None) -> dict[str, str]:
    """Parse the headers kept with a job or a message; anything else kept there is ignored."""
    try:
        headers: object = json.loads(trace) if trace else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(headers, dict):
        return {}
    return {name: value for name, value in cast("dict[str, object]", headers).items() if isinstance(value, str)}


class _Scopes:
    """Context manager that enters one context per tracer and exits those it entered; ``values`` is what they yield."""

    __slots__ = ("_entered", "_makers", "values")

    def __init__(self, makers: Sequence[Callable[[], AbstractContextManager[Any]]]) -> None:
        self._makers = makers
        self._entered: list[AbstractContextManager[Any]] = []
        self.values: list[Any] = []

    def __enter__(self) -> Self:
        for make in self._makers:
            with contained("a tracer could not begin"):
                scope = make()
                self.values.append(scope.__enter__())
                self._entered.append(scope)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for scope in reversed(self._entered):
            with contained("a tracer could not end"):
                try:
                    scope.__exit__(kind, error, trace)
                except BaseException as fault:
                    if fault is not error:
                        raise


def _tried(call: Callable[[], Any]) -> Any:
    with contained("a tracer failed"):
        return call()
    return None


def _joined(all_headers: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Join the headers of several tracers; each adds its own to the baggage."""
    joined: dict[str, str] = {}
    for headers in all_headers:
        for name, value in headers.items():
            if value and value.isprintable() and len(value) <= _LONGEST_HEADER:
                both = name == "baggage" and name in joined
                joined[name] = f"{joined[name]},{value}" if both else value
    return joined


def _as_text(headers: Mapping[str, str]) -> str | None:
    return json.dumps(headers) if headers else None


@dataclass(frozen=True, slots=True)
class FinalFailure:
    """A job that will not be retried. ``payload`` is for observers that are configured to include it.

    ``reported`` says whether the handler itself has already reported the error.
    """

    job_id: int
    task: str
    store_id: UUID | None
    attempt: int
    error: BaseException
    payload: str | None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class MessageFailure:
    """A message of a relay, or of the consumer named by ``consumer``, that waits for an operator."""

    message_id: str
    destination: str
    event: str
    store_id: UUID | None
    code: str
    attempt: int
    consumer: str = ""


class FailureObserver(Protocol):
    """Function that is called once for each final failure."""

    def __call__(self, failure: FinalFailure | MessageFailure, /) -> None:
        """Report one failure; errors raised here are logged and change nothing."""


_observers: list[FailureObserver] = []


def observe_failures(observer: FailureObserver) -> None:
    """Add an observer; adding it twice has no effect."""
    if observer not in _observers:
        _observers.append(observer)


def report_failure(failure: FinalFailure | MessageFailure) -> None:
    """Call every observer; an observer's error is logged and never affects the job."""
    for observer in _observers:
        subject = f"job {failure.job_id}" if isinstance(failure, FinalFailure) else f"message {failure.message_id}"
        with contained("a failure observer raised for %s", subject):
            observer(failure)
