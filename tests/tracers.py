"""Tracers for tests: one with fixed headers that records its calls, and one that fails."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from salon_jobs.core.tracing import Published, Received, Run, Sent


class RecordingTracer:
    """Active tracer that returns ``headers`` and appends each record to ``calls`` when its span ends."""

    def __init__(self, headers: Mapping[str, str], *, active: bool = True) -> None:
        self.given = headers
        self.active = active
        self.calls: list[Any] = []

    def is_active(self) -> bool:
        return self.active

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
    def consuming(self, message: Received) -> Generator[Mapping[str, str]]:
        yield {**self.given, "of": message.message_id}
        self.calls.append(message)

    def published(self, message: Published) -> None:
        self.calls.append(message)

    def trace_id(self) -> str | None:
        return "a-trace"

    def flush(self) -> None:
        self.calls.append("flush")


class Failing:
    """Tracer whose methods raise."""

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

    def consuming(self, message: Received) -> AbstractContextManager[Mapping[str, str]]:
        self._fail(message)

    def published(self, message: Published) -> None:
        self._fail(message)

    def trace_id(self) -> str | None:
        self._fail(None)

    def flush(self) -> None:
        self._fail(None)

    def _fail(self, what: object) -> NoReturn:
        raise RuntimeError(f"no {type(what).__name__}")
