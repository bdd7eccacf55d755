"""A bounded wait for a database that may never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

from django.db import connections

from salon_jobs.core.errors import NotReady

T = TypeVar("T")
# Health probes time out after three to five seconds. Answer before that, with the reason.
_PATIENCE_S: Final = 2.0
# The operating system may wait a quarter of an hour for a lost connection; start another probe long before that.
_LOST_AFTER_S: Final = 30.0


class Probe(Generic[T]):
    """Query that runs in its own thread, on a connection that is closed afterwards.

    Concurrent callers share one attempt. A hanging database therefore neither blocks the caller nor costs another
    thread and connection for each probe.
    """

    def __init__(self, ask: Callable[[], T], *, patience_s: float = _PATIENCE_S) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._asked = float("-inf")
        self._answer: Future[T] | None = None

    def answer(self) -> T:
        """Return or raise what the query did. Raises NotReady if there is no answer within ``patience_s``."""
        answer = self._latest()
        try:
            return answer.result(self._patience_s)
        except TimeoutError:
            silent_s = time.monotonic() - self._asked
            raise NotReady(f"the database does not answer: asked {silent_s:.0f} s ago") from None

    def _latest(self) -> Future[T]:
        with self._lock:
            now = time.monotonic()
            if self._answer is None or self._answer.done() or now - self._asked > _LOST_AFTER_S:
                self._asked, self._answer = now, Future()
                threading.Thread(target=self._run, args=(self._answer,), name="salon-jobs-probe", daemon=True).start()
            return self._answer

    def _run(self, answer: Future[T]) -> None:
        try:
            answer.set_result(self._ask())
        except BaseException as error:  # raised again in the caller
            answer.set_exception(error)
        finally:
            connections.close_all()
