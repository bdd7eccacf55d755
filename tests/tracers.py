"""Tracers for tests: one with fixed headers that records its calls, and one that fails, also as a reporter."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from salon_jobs.core.tracing import Run, Sent, TracedMessage


class RecordingTracer:
    """Tracer that returns ``headers`` and appends each record to ``calls`` when its span ends."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.given = headers
        self.calls: list[Any] = []

    @contextmanager
    def sending(self, sent: Sent) -> Generator[None]:
        yield
        self.calls.append(sent)

    def headers(self) -> Mapping[str, str]:
        return self.given

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        yield
        self.calls.append(run)

    @contextmanager
    def consuming(self, message: TracedMessage) -> Generator[Mapping[str, str]]:
        yield {**self.given, "of": message.message_id}
        self.calls.append(message)

    def published(self, message: TracedMessage, **_: object) -> None:
        self.calls.append(message)

    def trace_id(self) -> str | None:
        return "a-trace"

    def flush(self) -> None:
        self.calls.append("flush")


class Failing:
    """Tracer, and reporter of failures, whose methods raise."""

    def is_active(self) -> bool:
        return True

    def sending(self, sent: Sent) -> AbstractContextManager[object]:
        self._fail(sent)

    def headers(self) -> Mapping[str, str]:
        self._fail(None)

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        yield
        self._fail(run)

    def consuming(self, message: TracedMessage) -> AbstractContextManager[Mapping[str, str]]:
        self._fail(message)

    def published(self, message: TracedMessage, **_: object) -> None:
        self._fail(message)

    def report(self, failure: object) -> None:
        self._fail(failure)

    def trace_id(self) -> str | None:
        self._fail(None)

    def flush(self) -> None:
        self._fail(None)

    def _fail(self, what: object) -> NoReturn:
        raise RuntimeError(f"no {type(what).__name__}")
