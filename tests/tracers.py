"""Holds tracers for the tests: one that gives fixed headers and remembers what it was told, and one that fails."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from salon_jobs.core.tracing import Published, Received, Run, Sent


class Remembering:
    """Gives ``headers`` to everything, and appends what it is told to ``told`` when it ends."""

    def __init__(self, headers: Mapping[str, str], *, active: bool = True) -> None:
        self.given = headers
        self.active = active
        self.told: list[Any] = []

    def is_active(self) -> bool:
        """Be active as asked."""
        return self.active

    @contextmanager
    def sending(self, sent: Sent) -> Generator[None]:
        """Remember what was sent."""
        yield
        self.told.append(sent)

    def headers(self) -> Mapping[str, str]:
        """Give the headers."""
        return self.given

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Remember the run."""
        yield
        self.told.append(run)

    @contextmanager
    def consuming(self, message: Received) -> Generator[Mapping[str, str]]:
        """Give the job the headers and the message's id."""
        yield {**self.given, "of": message.message_id}
        self.told.append(message)

    def published(self, message: Published) -> None:
        """Remember the message."""
        self.told.append(message)

    def trace_id(self) -> str | None:
        """Give the id of a trace."""
        return "a-trace"

    def flush(self) -> None:
        """Remember it."""
        self.told.append("flush")


class Failing:
    """Raises whatever it is asked."""

    def is_active(self) -> bool:
        """Be active."""
        return True

    def sending(self, sent: Sent) -> AbstractContextManager[object]:
        """Fail."""
        self._fail(sent)

    def headers(self) -> Mapping[str, str]:
        """Fail."""
        self._fail(None)

    @contextmanager
    def running(self, run: Run) -> Generator[None]:
        """Fail in the end."""
        yield
        self._fail(run)

    def consuming(self, message: Received) -> AbstractContextManager[Mapping[str, str]]:
        """Fail."""
        self._fail(message)

    def published(self, message: Published) -> None:
        """Fail."""
        self._fail(message)

    def trace_id(self) -> str | None:
        """Fail."""
        self._fail(None)

    def flush(self) -> None:
        """Fail."""
        self._fail(None)

    def _fail(self, what: object) -> NoReturn:
        raise RuntimeError(f"no {type(what).__name__}")
