"""Observer interface for tracing and for final failures. Imports no tracing tool."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast
from uuid import UUID

from salon_jobs.core.events import JOB_SUCCEEDED, logger

T = TypeVar("T")
# What ``messaging.system`` is where our own queue carries the work.
SYSTEM: Final = "salon_jobs"
# As many characters as W3C asks all to carry on. More would be kept in each job and sent with each message, or make a
# message too large for its broker.
_LONGEST_HEADER: Final = 8192


@dataclass(slots=True, kw_only=True)
class Sent:
    """Is what is written at once: ``count`` jobs of a task, or messages; "" where they differ.

    ``message_id`` (of one alone), ``count`` and ``body_size`` may become known only when it is left.
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
    """Is one run of a job; how it ended, by the name of its log event, is known when it is left."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Is one message that ``consumer`` turns into a job."""

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
    """Is one message that a relay tried to publish, between two instants (ns since 1970). ``code``: why it failed."""

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
    """Is told of the flows while it is active. Its errors are logged, and never the flow's problem."""

    def is_active(self) -> bool:
        """Tell, cheaply, whether it wants to be told."""
        ...

    def sending(self, sent: Sent, /) -> AbstractContextManager[object]:
        """Surround an enqueue, or an emit; an error that leaves it failed."""
        ...

    def headers(self) -> Mapping[str, str]:
        """Return by what whoever receives continues the current trace."""
        ...

    def running(self, run: Run, /) -> AbstractContextManager[object]:
        """Surround one run, from its start to its written end, on the thread of the run."""
        ...

    def consuming(self, message: Received, /) -> AbstractContextManager[Mapping[str, str]]:
        """Surround the enqueue of the job of one message, among others at once; gives what the job continues by."""
        ...

    def published(self, message: Published, /) -> None:
        """Note one try to publish."""
        ...

    def trace_id(self) -> str | None:
        """Return the id of the current trace, for log records."""
        ...

    def flush(self) -> None:
        """Send what is on its way, before the process ends; may take as long as it likes."""
        ...


_tracers: list[Tracer] = []


def trace_by(tracer: Tracer) -> None:
    """Tell ``tracer`` from now on. Once each."""
    if tracer not in _tracers:
        _tracers.append(tracer)


def active_tracers() -> list[Tracer]:
    """Return those that want to be told now."""
    return [tracer for tracer in _tracers if tracer.is_active()]


def sending(sent: Sent) -> AbstractContextManager[object]:
    """Surround an enqueue or an emit."""
    return _Scopes([partial(tracer.sending, sent) for tracer in active_tracers()])


def tracing_run(run: Run) -> AbstractContextManager[object]:
    """Surround one run."""
    return _Scopes([partial(tracer.running, run) for tracer in active_tracers()])


@contextmanager
def consuming(messages: Sequence[T], describe: Callable[[T], Received]) -> Generator[list[str | None]]:
    """Surround the enqueue of the jobs of ``messages``; gives the trace that each one's job keeps."""
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
    """Return by what whoever receives continues the current trace; nothing where there is none."""
    return _joined([_tried(tracer.headers) or {} for tracer in active_tracers()])


def current_trace() -> str | None:
    """Return the same as the JSON that a job keeps; None where there is nothing to keep."""
    return _as_text(current_headers()) if _tracers else None


def current_trace_id() -> str | None:
    """Return the id of the current trace, of the first tracer that knows one."""
    return next((found for tracer in active_tracers() if (found := _tried(tracer.trace_id))), None)


def flush(timeout_s: float) -> None:
    """Send what tracers hold back, for so long at most: the interpreter may be ended without asking them."""
    # Threads of their own: an agent that does not answer must not hold up the end.
    threads = [Thread(target=_tried, args=(tracer.flush,), daemon=True) for tracer in active_tracers()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))


def headers_of(trace: str | None) -> dict[str, str]:
    """Read the headers that a job or a message keeps; whatever else is kept there says nothing."""
    try:
        found: object = json.loads(trace) if trace else None
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in cast("dict[str, object]", found).items() if isinstance(value, str)}


class _Scopes:
    """Enters a context manager of each tracer, and leaves those that could be entered; ``values`` is what they gave."""

    __slots__ = ("_entered", "_makers", "values")

    def __init__(self, makers: Sequence[Callable[[], AbstractContextManager[Any]]]) -> None:
        self._makers = makers
        self._entered: list[AbstractContextManager[Any]] = []
        self.values: list[Any] = []

    def __enter__(self) -> Self:
        for make in self._makers:
            try:
                scope = make()
                self.values.append(scope.__enter__())
            except Exception:
                logger.exception("a tracer could not begin")
            else:
                self._entered.append(scope)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for scope in reversed(self._entered):
            try:
                scope.__exit__(kind, error, trace)
            except Exception as fault:
                if fault is not error:
                    logger.exception("a tracer could not end")


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        logger.exception("a tracer could not do what it was asked")
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
