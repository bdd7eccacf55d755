"""Asks a database that may never answer, and waits for it so long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from django.db import connections

from salon_jobs.core.errors import NotReady

T = TypeVar("T")
# Probes wait for three to five seconds; one that had no answer would know less than one that is told so.
_PATIENCE_S: Final = 2.0
# One that is lost on the way may be waited for by the system for a quarter of an hour: by then another may be answered.
_LOST_AFTER_S: Final = 30.0


class Probe(Generic[T]):
    """Is asked in a thread of its own, on a connection that is closed behind it; one at a time, whoever wants to know.

    So a database that hangs neither hangs who asks nor gets a thread and a connection more for each probe.
    """

    def __init__(self, ask: Callable[[], T], *, patience_s: float = _PATIENCE_S) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._answer: Future[T] | None = None

    def answer(self) -> T:
        """Return what was answered, or raise what was raised. Raises NotReady when nothing was within the patience."""
        answer = self._asked_by_now()
        try:
            return answer.result(self._patience_s)
        except TimeoutError:
            silent_s = time.monotonic() - self._asked
            raise NotReady(f"the database does not answer: asked {silent_s:.0f} s ago") from None

    def _asked_by_now(self) -> Future[T]:
        with self._lock:
            now = time.monotonic()
            if self._answer is None or self._answer.done() or now - self._asked > _LOST_AFTER_S:
                self._asked, self._answer = now, Future()
                threading.Thread(
                    target=self._put, args=(self._answer,), name="salon-jobs-question", daemon=True
                ).start()
            return self._answer

    def _put(self, answer: Future[T]) -> None:
        try:
            given = self._ask()
        except BaseException as error:  # whoever asked raises it
            answer.set_exception(error)
        else:
            answer.set_result(given)
        finally:
            connections.close_all()
