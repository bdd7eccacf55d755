"""Thread that publishes the messages of one destination, with its circuit breaker."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from django.db import connections

from salon_jobs.brokers.publisher import (
    NOT_SENT,
    Answers,
    OutgoingMessage,
    PublishBroken,
    Publisher,
    PublishFailure,
    Verdict,
)
from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.tracing import is_traced, published
from salon_jobs.core.vital import exits_on_error
from salon_jobs.outbox.backlog import Backlog
from salon_jobs.outbox.failures import Failure
from salon_jobs.outbox.marker import MarkBatch, Marker

_WAIT_S: Final = (0.25, 30.0)


class Breaker:
    """Circuit breaker: closed while the destination answers, open after an outage, half open when its wait is over.

    Waits double from 0.25 s to 30 s.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wait_s = _WAIT_S[0]
        self._open_until = float("-inf")
        self.outage: PublishFailure | None = None

    @property
    def wait_s(self) -> float:
        """Seconds until the next try; 0 if one is allowed now."""
        return max(0.0, self._open_until - time.monotonic())

    @property
    def is_closed(self) -> bool:
        """Whether more than a single message may be tried."""
        return self.outage is None

    def trip(self, outage: PublishFailure) -> bool:
        """Open, or stay open for longer; return whether the outage or its code is new."""
        with self._lock:
            is_new = self.outage is None or self.outage.code != outage.code
            self.outage = outage
            self._open_until = time.monotonic() + self._wait_s
            self._wait_s = min(_WAIT_S[1], self._wait_s * 2)
            return is_new

    def close(self, *, healed: bool = True) -> bool:
        """Close after the destination answered; return whether the breaker was open.

        ``healed`` False: the destination has not accepted anything yet, so the next outage waits as if this one had
        continued.
        """
        with self._lock:
            was_open = self.outage is not None
            self.outage, self._open_until = None, float("-inf")
            if healed:
                self._wait_s = _WAIT_S[0]
            return was_open


_CHECK_EVERY_S: Final = 0.5


class DestinationWorker:
    """Publisher of a backlog on its own ``thread``, which passes marks to the marker and failures to the relay."""

    def __init__(
        self,
        destination: str,
        publisher: Publisher,
        marker: Marker,
        *,
        owns: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        name = f"salon-jobs-{destination}"[:60]
        self.thread = threading.Thread(target=exits_on_error(self._run), name=name, daemon=True)
        self.destination = destination
        self.backlog = Backlog(conf.outbox.fetch_limit)
        self.breaker = Breaker()
        self.paused = False
        # Messages per second. None: no limit, hence no tokens.
        self.rate: int | None = conf.outbox.rate_of(destination)
        self.tokens = None if self.rate is None else 0
        # When it began to have messages to send but no tokens.
        self._starved_since: float | None = None
        # Outcomes of the broker's answers, for metrics.
        self.counts = dict.fromkeys(("published", "skipped", "retried", "failed"), 0)
        self.publisher = publisher
        self._marker = marker
        self._owns = owns
        self._on_change = on_change
        self._generation = 0
        self._busy = self._opened = False
        self._stopping = threading.Event()
        self._forced = threading.Event()
        self._failures: list[Failure] = []
        # The outage that this relay wrote to the table, "" for none, None if the row may be lost. Written by the relay.
        self.written_outage: str | None = ""
        # Whether another relay wrote it, which may have died, and the destination has not answered since.
        self.inherited_outage = False

    def stop(self, *, force: bool = False) -> None:
        """Stop after the batch being published; with ``force``, after the current message. Idempotent."""
        self._stopping.set()
        if force:
            self._forced.set()
        with self.backlog.changed:
            self.backlog.changed.notify_all()

    def abandon_batch(self) -> None:
        """Send no more of the current batch, because some of it now belongs to another relay.

        Call after the backlog was given the owned partitions: messages taken from then on are ours.
        """
        with self.backlog.changed:
            self._generation += 1

    def forget(self) -> None:
        """Send no more messages that were read, and rely on no row that was written: the database was lost."""
        with self.backlog.changed:
            self._generation += 1
            self.backlog.forget()
        self.written_outage = None

    def inherit(self, outage: str) -> None:
        """Answer for the row of an outage that another relay wrote: it stays until the destination answers."""
        self.written_outage, self.inherited_outage = outage, True

    def give_tokens(self, tokens: int) -> None:
        with self.backlog.changed:
            self.tokens = (self.tokens or 0) + tokens
            self.backlog.changed.notify_all()

    @property
    def starved_s(self) -> float:
        """Number of seconds for which it has had messages to send and no tokens."""
        since = self._starved_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def wanted_tokens(self) -> int:
        """Number of tokens to request: enough to keep a small reserve ready."""
        if self.rate is None or self.tokens is None:
            return 0
        reserve = max(1, self.rate // 20)
        return reserve - self.tokens if self.tokens < max(1, reserve // 2) else 0

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight or could be."""
        return not self._busy and not self.backlog.size and not self._failures

    def uses(self, partition: int) -> bool:
        """Return whether messages of a partition are in memory, or its failures are still to be written."""
        with self.backlog.changed:
            unwritten = any(failure.message.partition == partition for failure in self._failures)
            return unwritten or self.backlog.uses(partition)

    @property
    def is_blocked(self) -> bool:
        """Whether messages in memory cannot be sent now."""
        return self.paused or not self.breaker.is_closed

    def facts(self) -> dict[str, object]:
        outage = self.breaker.outage
        return {
            "in_memory": self.backlog.size,
            "on_hold": self.backlog.on_hold,
            "paused": self.paused,
            "outage": None if outage is None else outage.code,
        }

    def take_failures(self) -> list[Failure]:
        """Return failures still to be written. They are kept until ``failures_written``."""
        with self.backlog.changed:
            return list(self._failures)

    def failures_written(self, failures: Sequence[Failure]) -> None:
        """Forget failures that were written or are not ours to write."""
        with self.backlog.changed:
            del self._failures[: len(failures)]
        self.backlog.written(failures)

    def samples(self) -> list[Sample]:
        name = self.destination
        return [
            Sample(metrics.BREAKER_OPEN, not self.breaker.is_closed, (name,)),
            Sample(metrics.DESTINATION_PAUSED, self.paused, (name,)),
            *(Sample(metrics.RELAY_MESSAGES, count, (name, what)) for what, count in self.counts.items()),
        ]

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                batch, should_continue = self._next_batch()
                if batch:
                    began_ns = time.time_ns()
                    answers = self._publish(batch, should_continue)
                    if is_traced():
                        _trace(batch, answers, began_ns)
                    self._handle(batch, answers, should_continue)
                    self._busy = False
                    self._on_change()
        finally:
            connections.close_all()  # connections that a publisher opened in this thread

    def _next_batch(self) -> tuple[list[OutgoingMessage], Callable[[], bool]]:
        changed = self.backlog.changed
        with changed:
            should_continue = partial(self._should_continue, self._generation)
            wait_s = self.breaker.wait_s
            if self.tokens != 0 or self.paused or wait_s or not self.backlog.waiting:
                self._starved_since = None
            elif self._starved_since is None:
                self._starved_since = time.monotonic()
            if self.paused or wait_s or not self.backlog.waiting or self.tokens == 0 or not self._owns():
                if not self._stopping.is_set():
                    changed.wait(min(_CHECK_EVERY_S, wait_s or _CHECK_EVERY_S))
                return [], should_continue
            self._busy = True
            most = conf.outbox.fetch_limit if self.breaker.is_closed else 1
            batch = self.backlog.take(most if self.tokens is None else min(most, self.tokens))
            if self.tokens is not None:
                self.tokens -= len(batch)
            return batch, should_continue

    def _publish(self, batch: Sequence[OutgoingMessage], should_continue: Callable[[], bool]) -> Answers:
        try:
            if not self._opened:
                self.publisher.open()
                self._opened = True
            answers = self.publisher.publish(batch, should_continue=should_continue)
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers to {len(batch)} messages")
        except BaseException as error:  # a publisher that breaks its contract must not end the relay
            answers = []
            if isinstance(error, PublishBroken):
                answers, error = error.answers[: len(batch)], error.__cause__ or error
            answers = [*answers, *[NOT_SENT] * (len(batch) - len(answers))]  # or they would count as published
            log_event(logging.ERROR, events.PUBLISHER_BROKEN, exc_info=error, aggregate_type=self.destination)
            broken = PublishFailure(Verdict.OUTAGE, "OUTBOX.PUBLISHER_BROKEN", f"{type(error).__name__}: {error}")
            return [broken if answer == NOT_SENT else answer for answer in answers]
        return answers

    def _should_continue(self, generation: int) -> bool:
        return generation == self._generation and not self._forced.is_set() and self._owns()

    def _handle(self, batch: Sequence[OutgoingMessage], answers: Answers, should_continue: Callable[[], bool]) -> None:
        """Mark published and skipped messages, hold failed ones, put back the rest; trip or close the breaker."""
        if not any(answers):
            self.backlog.done(batch)
            self._mark(batch, ())
            self._close_breaker()
            return
        sent: list[OutgoingMessage] = []
        skipped: list[tuple[OutgoingMessage, str]] = []
        unsent: list[OutgoingMessage] = []
        failures: list[Failure] = []
        failed: set[str] = set()
        outage: PublishFailure | None = None
        for message, answer in zip(batch, answers, strict=True):
            if answer is None:
                sent.append(message)
                continue
            match answer.verdict:
                case Verdict.SKIPPED:
                    skipped.append((message, str(answer)))
                case Verdict.RETRY | Verdict.REFUSED | Verdict.UNRESOLVABLE if message.aggregate_id not in failed:
                    failures.append(Failure.of(message, answer))
                    failed |= {message.aggregate_id} - {""}
                case Verdict.OUTAGE | Verdict.MISSING:  # these concern the destination, not the message
                    unsent.append(message)
                    outage = outage or answer
                case _:  # not sent; or an earlier one of its aggregate failed, and one row cannot name both
                    unsent.append(message)
        charged = [failure for failure in failures if failure.tries]
        for failure in charged:
            self.counts["failed" if failure.final else "retried"] += 1
        # Under one lock: the relay must neither write a failure that holds nothing yet, nor catch up an aggregate while
        # some of it is still to be put back.
        with self.backlog.changed:
            self.backlog.done([*sent, *(message for message, _ in skipped)])
            self.backlog.fail(failures)
            self._failures += failures
            self.backlog.put_back(unsent)
        self._mark(sent, skipped)
        if self.tokens is not None:
            self.give_tokens(len(unsent) + len(failures) - len(charged))
        if outage is None and unsent and not (sent or failures or skipped) and should_continue():
            outage = PublishFailure(Verdict.OUTAGE, "OUTBOX.NOT_SENT", "the publisher sent nothing and did not say why")
        if outage is not None:
            if self.breaker.trip(outage) and not outage.quiet:
                is_missing = outage.verdict is Verdict.MISSING
                event = events.DESTINATION_UNRESOLVABLE if is_missing else events.DESTINATION_LOST
                fields: dict[str, Any] = {"code": outage.code, "detail": outage.detail}
                log_event(logging.WARNING, event, aggregate_type=self.destination, **fields)
        elif sent or failures:
            self._close_breaker(healed=bool(sent or charged))

    def _mark(self, sent: Sequence[OutgoingMessage], skipped: Sequence[tuple[OutgoingMessage, str]]) -> None:
        self.counts["published"] += len(sent)
        self.counts["skipped"] += len(skipped)
        if sent or skipped:
            self._marker.put(MarkBatch(self.backlog, sent, skipped))

    def _close_breaker(self, *, healed: bool = True) -> None:
        self.inherited_outage = False
        if self.breaker.close(healed=healed):
            log_event(logging.INFO, events.DESTINATION_BACK, aggregate_type=self.destination)


_NOT_TRIED: Final = (Verdict.NOT_SENT, Verdict.SKIPPED)


def _trace(batch: Sequence[OutgoingMessage], answers: Answers, began_ns: int) -> None:
    """Trace each message that was tried and carries headers."""
    ended_ns = time.time_ns()
    for message, answer in zip(batch, answers, strict=True):
        if message.headers == "{}" or (answer is not None and answer.verdict in _NOT_TRIED):
            continue
        code = "" if answer is None else answer.code or str(answer.verdict)
        published(message.traced(), began_ns=began_ns, ended_ns=ended_ns, code=code)
