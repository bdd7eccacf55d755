"""Loops that receive from sources, store the messages, and acknowledge them after the commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

from django.db import Error, connections

from salon_jobs.brokers.registry import make_source
from salon_jobs.brokers.source import Delivery, Source
from salon_jobs.conf import settings as conf
from salon_jobs.conf.sections import ConsumerSettings
from salon_jobs.core import events, metrics
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.error_report import message_of
from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SourceLost, suggest
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.db.pools import refuse_small_pool
from salon_jobs.db.statements import is_of_driver
from salon_jobs.db.upkeep import tidy_connections
from salon_jobs.inbox.processor import BatchResult, Processor
from salon_jobs.inbox.queries import count_rejected, has_messages
from salon_jobs.process.loop import Loop

T = TypeVar("T")
_WAITS: Final = Backoff(base=timedelta(seconds=0.5), cap=timedelta(seconds=30))
_COUNT_EVERY_S: Final = 10.0
# Messages received at a time: few until their size is known, then by the mean of the last batch.
_BATCH: Final = 100
_FIRST_BATCH: Final = 10
_MOST_SIZE: Final = 8_000_000
_WAIT: Final = timedelta(seconds=1)


class Consumer(Loop):
    """Loop over one source. It waits out errors of the source and the database; readiness shows them until they end.

    In a burst it ends when the source is empty, or at the first error, which it keeps as ``error``.
    """

    def __init__(
        self, name: str, settings: ConsumerSettings, source: Source, *, using: str, burst: bool = False
    ) -> None:
        """Prepare without I/O. Raises ConfigurationError for an unknown task."""
        super().__init__(f"consumer {name}", using=using)
        self.name = name
        self.error: Exception | None = None
        self._source = source
        self._burst = burst
        self._processor = Processor(name, settings, using=using)
        self._trouble: Exception | None = None
        self._failures = 0
        self._answered = time.monotonic()
        self._received = self._counted = float("-inf")
        self._rejected = 0
        self._deliveries = 0
        self._most = _FIRST_BATCH
        self._asked = False
        self._counts = dict.fromkeys(("enqueued", "duplicate", "rejected", "given_back"), 0)

    def run(self) -> bool:
        """Consume until stopped; return False after an unexpected error, which is kept."""
        try:
            return super().run()
        except Exception as error:  # raised again by Consumers
            self.error = error
            return False

    def poll(self) -> float:
        count = self._attempt(self._process_batch)
        if count is not None:
            if self._trouble is not None:
                log_event(logging.INFO, events.SOURCE_BACK, consumer=self.name)
            self._trouble, self._failures = None, 0
        if self._burst and not count:
            self.stopping.set()
        return 0.0

    def finish(self) -> bool:
        self._source.close()
        return self.error is None

    def facts(self) -> dict[str, object]:
        """Return the consumer's readiness facts. Raises SourceLost when the source or the database does not answer."""
        if (trouble := self._trouble) is not None:
            reason = f"{trouble.code}: {trouble}" if isinstance(trouble, SalonJobsError) else type(trouble).__name__
            raise SourceLost(f"consumer {self.name!r}: {reason}")
        # Twice: once for the wait for messages, once for the work on them.
        if self.polled_s_ago > 2 * conf.stale_after_s:
            raise SourceLost(f"consumer {self.name!r} has not polled for {self.polled_s_ago:.0f} s")
        received_s_ago = time.monotonic() - self._received if self._deliveries else None
        return {
            "received_s_ago": None if received_s_ago is None else round(received_s_ago, 1),
            "rejected": self._rejected,
        }

    def samples(self) -> list[Sample]:
        name = self.name
        return [
            Sample(metrics.CONSUMER_UP, self._trouble is None, (name,)),
            Sample(metrics.CONSUMER_POLL_AGE, time.monotonic() - self._answered, (name,)),
            Sample(metrics.CONSUMER_REJECTED, self._rejected, (name,)),
            Sample(metrics.CONSUMER_RECEIVED, self._deliveries, (name,)),
            *(Sample(metrics.CONSUMER_MESSAGES, count, (name, what)) for what, count in self._counts.items()),
        ]

    def _process_batch(self) -> int:
        """Receive and process one batch, then retry the messages that operators requested; return the number."""
        if not self._asked:
            self._source.resumes = has_messages(self.name, using=self.using)
            self._asked = True
        deliveries = self._source.receive(self._most, wait=_WAIT, visibility=self._source.visibility)
        now = self._answered = time.monotonic()
        if deliveries:
            self._deliveries += len(deliveries)
            self._received = now
            mean = sum(len(delivery.raw) for delivery in deliveries) // len(deliveries)
            self._most = max(1, min(_BATCH, _MOST_SIZE // max(1, mean)))
            with self._hidden(deliveries):
                result = self._process(deliveries)
            self._answer(result)
        retried = self._processor.retry_requested()
        if retried:
            log_event(logging.INFO, events.MESSAGES_RETRIED, consumer=self.name, messages=retried)
        if retried or now - self._counted >= _COUNT_EVERY_S:
            self._rejected, self._counted = count_rejected(self.name, using=self.using), now
        return len(deliveries) + retried

    def _process(self, deliveries: Sequence[Delivery]) -> BatchResult:
        """Process a batch, retrying until the database answers: its outage costs the messages no delivery attempt."""
        while not self.stopping.is_set():
            result = self._attempt(lambda: self._processor.process(deliveries, stopping=self.stopping.is_set))
            if result is not None:
                return result
        return BatchResult(give_back=list(deliveries))

    def _answer(self, result: BatchResult) -> None:
        counts: dict[str, Any] = {
            "enqueued": result.enqueued,
            "duplicates": result.duplicates,
            "rejected": result.rejected,
            "given_back": len(result.give_back),
        }
        log_event(logging.INFO, events.MESSAGES_TAKEN, consumer=self.name, **counts)
        self._rejected += result.rejected
        for outcome, count in zip(self._counts, counts.values(), strict=True):
            self._counts[outcome] += count
        if result.acknowledge:
            self._source.acknowledge(result.acknowledge)
        if result.give_back:
            after = timedelta(0) if self.stopping.is_set() else self._source.visibility
            self._source.give_back(result.give_back, after=after)

    @contextmanager
    def _hidden(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Keep deliveries hidden from other consumers while the block runs."""
        done, visibility = threading.Event(), self._source.visibility

        def extend() -> None:
            while not done.wait(visibility.total_seconds() / 3):
                try:
                    self._source.extend(deliveries, visibility=visibility)
                except Exception as error:  # then others may receive them too, but the inbox has them
                    log_event(logging.WARNING, events.SOURCE_LOST, consumer=self.name, **_fields(error))

        thread = threading.Thread(target=extend, name=f"salon-jobs-hold-{self.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _attempt(self, work: Callable[[], T]) -> T | None:
        """Return the result, or None after an error, which ends a burst; otherwise wait, longer after each in a row."""
        try:
            return work()
        except Exception as error:  # a custom source may raise anything; it is logged and shown by readiness
            if self._burst:
                self.error = error
                self.stopping.set()
                return None
            if isinstance(error, Error):
                connections[self.using].errors_occurred = True
            if type(self._trouble) is not type(error):  # log only the first of each class
                if isinstance(error, NotReady):
                    log_event(logging.WARNING, events.SOURCE_LOST, consumer=self.name, **_fields(error))
                elif isinstance(error, Error) and not is_of_driver(error):
                    log_event(logging.WARNING, events.DATABASE_LOST, loop=f"consumer {self.name}", **_fields(error))
                else:
                    log_event(logging.ERROR, events.CONSUMER_FAILED, exc_info=error, consumer=self.name)
            self._trouble = error
            self._failures += 1
            self.stopping.wait(_WAITS.delay(self._failures).total_seconds())
            tidy_connections()
            return None


def _fields(error: Exception) -> dict[str, Any]:
    code = {"code": error.code} if isinstance(error, SalonJobsError) else {}
    return {**code, "error": message_of(error).strip()}


_CHECK_EVERY_S: Final = 0.2
# Heartbeat, and two concurrent health checks.
_THREADS: Final = 3


class Consumers(Loop):
    """Loop of ``consume_queue``: runs each consumer on its own thread.

    It ends when all have ended, as in a burst. ``run`` raises the first error of a burst.
    """

    def __init__(self, names: Sequence[str] = (), *, using: str, burst: bool = False) -> None:
        """Create the named consumers, or all in the settings. No I/O. Raises ConfigurationError."""
        super().__init__("inbox", using=using)
        chosen = {name: _settings(name) for name in names} if names else dict(conf.consumers)
        if not chosen:
            raise ConfigurationError("SALON_JOBS['CONSUMERS'] names no source: there is nothing to consume")
        refuse_small_pool(_THREADS + len(chosen), using=using)
        self._consumers = [
            Consumer(name, settings, make_source(settings.source, consumer=name), using=using, burst=burst)
            for name, settings in chosen.items()
        ]

    def run(self) -> bool:
        for consumer in self._consumers:
            consumer.start()
        return super().run()

    def poll(self) -> float:
        """End with the consumers."""
        if any(consumer.error for consumer in self._consumers) or not any(each.is_alive for each in self._consumers):
            self.stopping.set()
        return _CHECK_EVERY_S

    def finish(self) -> bool:
        for consumer in self._consumers:
            consumer.stop()
        for consumer in self._consumers:
            consumer.join()
        for consumer in self._consumers:
            if consumer.error is not None:
                raise consumer.error
        return True

    def facts(self) -> dict[str, object]:
        """Return the readiness facts of each consumer. Raises SourceLost for the first that cannot work."""
        return {"consumers": {consumer.name: consumer.facts() for consumer in self._consumers}}

    def samples(self) -> list[Sample]:
        return [sample for consumer in self._consumers for sample in consumer.samples()]


def _settings(name: str) -> ConsumerSettings:
    try:
        return conf.consumers[name]
    except KeyError:
        hint = suggest(name, sorted(conf.consumers))
        raise ConfigurationError(f"SALON_JOBS['CONSUMERS'] has no {name!r}; {hint}") from None
