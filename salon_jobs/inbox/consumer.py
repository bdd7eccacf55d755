"""Loop that receives from one source, stores the messages, and acknowledges them after the commit."""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.brokers.registry import make_source
from salon_jobs.brokers.source import Delivery, Source
from salon_jobs.conf import settings as conf
from salon_jobs.conf.sections import ConsumerSettings
from salon_jobs.core import events, metrics
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError, SourceLost
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.inbox import queries as inbox
from salon_jobs.inbox.processor import BatchResult, Processor
from salon_jobs.inbox.queries import PRUNE_BATCH, prune_inbox
from salon_jobs.tenancy.connections import log_lost, refuse_small_pool, tidy_connections

T = TypeVar("T")
_WAITS: Final = Backoff(base=timedelta(seconds=0.5), cap=timedelta(seconds=30))
_COUNT_EVERY_S: Final = 10.0
_AT_ONCE: Final = timedelta(0)


class Consumer:
    """Loop over one source, for its own thread."""

    def __init__(self, name: str, settings: ConsumerSettings, source: Source, *, burst: bool = False) -> None:
        """Prepare without I/O. Raises ConfigurationError for an unknown task."""
        self.name = name
        self._settings = settings
        self._source = source
        self._visibility = settings.visibility or source.visibility
        self._burst = burst
        self._intake = Processor(name, settings)
        self._stop = threading.Event()
        self._trouble: Exception | None = None
        self._tries = 0
        self._looked = self._answered = time.monotonic()
        self._received = self._counted = float("-inf")
        self._rejected = 0
        self._deliveries = 0
        self._counts = dict.fromkeys(("enqueued", "duplicate", "rejected", "given_back"), 0)

    def run(self) -> None:
        """Consume until stopped. In a burst, stop when the source is empty, and raise any error instead of waiting."""
        try:
            while not self._stop.is_set():
                done = self._unless_lost(self._look)
                if done is not None:
                    self._tell_back()
                if self._burst and done == 0:
                    return
        finally:
            self._source.close()
            connections.close_all()

    def stop(self) -> None:
        """Stop after the current batch; what was only received is given back. Idempotent."""
        self._stop.set()

    def facts(self) -> dict[str, object]:
        """Return the consumer's readiness facts. Raises SourceLost when the source or the database does not answer."""
        if (trouble := self._trouble) is not None:
            told = f"{trouble.code}: {trouble}" if isinstance(trouble, SalonJobsError) else type(trouble).__name__
            raise SourceLost(f"consumer {self.name!r}: {told}")
        age = time.monotonic() - self._looked
        # Twice: once for the wait for messages, once for the work on them.
        if age > 2 * conf.stale_after_s + self._settings.wait.total_seconds():
            raise SourceLost(f"consumer {self.name!r} has not looked for {age:.0f} s")
        received = time.monotonic() - self._received
        return {"received_s_ago": None if received == float("inf") else round(received, 1), "rejected": self._rejected}

    def samples(self) -> list[Sample]:
        """Return the metrics of this consumer."""
        name = self.name
        return [
            Sample(metrics.CONSUMER_UP, self._trouble is None, (name,)),
            Sample(metrics.CONSUMER_LOOK_AGE, time.monotonic() - self._answered, (name,)),
            Sample(metrics.CONSUMER_REJECTED, self._rejected, (name,)),
            Sample(metrics.CONSUMER_RECEIVED, self._deliveries, (name,)),
            *(Sample(metrics.CONSUMER_MESSAGES, count, (name, what)) for what, count in self._counts.items()),
        ]

    def _look(self) -> int:
        """Receive and process one batch, then retry what operators asked for; return how many messages there were."""
        settings = self._settings
        deliveries = self._source.receive(settings.batch, wait=settings.wait, visibility=self._visibility)
        self._looked = self._answered = time.monotonic()
        if deliveries:
            self._deliveries += len(deliveries)
            self._received = self._looked
            with self._held(deliveries):
                taken = self._take(deliveries)
            self._answer(taken)
        retried = self._intake.retry_asked()
        if retried:
            log_event(logging.INFO, events.MESSAGES_RETRIED, consumer=self.name, messages=retried)
        if retried or self._looked - self._counted >= _COUNT_EVERY_S:
            self._rejected, self._counted = inbox.count_rejected(self.name), self._looked
        return len(deliveries) + retried

    def _take(self, deliveries: Sequence[Delivery]) -> BatchResult:
        """Process a batch, retrying until the database answers: its outage costs the messages no delivery attempt."""
        while not self._stop.is_set():
            taken = self._unless_lost(lambda: self._intake.take(deliveries, stopping=self._stop.is_set))
            if taken is not None:
                return taken
        return BatchResult(give_back=list(deliveries))

    def _answer(self, taken: BatchResult) -> None:
        log_event(
            logging.INFO,
            events.MESSAGES_TAKEN,
            consumer=self.name,
            enqueued=taken.enqueued,
            duplicates=taken.duplicates,
            rejected=taken.rejected,
            given_back=len(taken.give_back),
        )
        self._rejected += taken.rejected
        self._counts["enqueued"] += taken.enqueued
        self._counts["duplicate"] += taken.duplicates
        self._counts["rejected"] += taken.rejected
        self._counts["given_back"] += len(taken.give_back)
        if taken.acknowledge:
            self._source.acknowledge(taken.acknowledge)
        if taken.give_back:
            after = _AT_ONCE if self._stop.is_set() else self._visibility
            self._source.give_back(taken.give_back, after=after)

    @contextmanager
    def _held(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Keep deliveries hidden from other consumers while the block runs."""
        done, visibility = threading.Event(), self._visibility

        def extend() -> None:
            while not done.wait(visibility.total_seconds() / 3):
                try:
                    self._source.extend(deliveries, visibility=visibility)
                except Exception as error:  # then others may receive them too, but the inbox knows them
                    log_event(logging.WARNING, events.SOURCE_LOST, consumer=self.name, **_told(error))

        thread = threading.Thread(target=extend, name=f"salon-jobs-hold-{self.name}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _unless_lost(self, work: Callable[[], T]) -> T | None:
        """Run ``work``. Log an error once, wait longer for each in a row, and return None. A burst raises it."""
        try:
            result = work()
        except Exception as error:  # a custom source may raise anything; it is logged and shown by readiness
            if self._burst:
                raise
            self._tell(error)
            self._tries += 1
            self._stop.wait(_WAITS.delay(self._tries).total_seconds())
            tidy_connections()
            return None
        tidy_connections()
        return result

    def _tell_back(self) -> None:
        if self._trouble is not None:
            log_event(logging.INFO, events.SOURCE_BACK, consumer=self.name)
        self._trouble, self._tries = None, 0

    def _tell(self, error: Exception) -> None:
        known = type(self._trouble) is type(error)
        self._trouble = error
        self._looked = time.monotonic()
        if isinstance(error, (DatabaseError, InterfaceError)):
            connections[conf.database].errors_occurred = True
        if known:
            return
        if isinstance(error, NotReady):
            log_event(logging.WARNING, events.SOURCE_LOST, consumer=self.name, **_told(error))
        elif isinstance(error, (DatabaseError, InterfaceError)):
            log_event(logging.WARNING, events.DATABASE_LOST, loop=f"consumer {self.name}", **_told(error))
        else:
            log_event(logging.ERROR, events.CONSUMER_FAILED, exc_info=error, consumer=self.name)


def _told(error: Exception) -> dict[str, Any]:
    code = {"code": error.code} if isinstance(error, SalonJobsError) else {}
    return {**code, "error": str(error).strip()}


_LOOK_S: Final = 0.2
_PRUNE_EVERY_S: Final = 60.0
# Heartbeat, pruning, and two concurrent health checks.
_THREADS: Final = 4


class Consumers:
    """Loop of ``consume_queue``."""

    def __init__(self, names: Sequence[str] = (), *, burst: bool = False) -> None:
        """Create the named consumers, or all in the settings. No I/O. Raises ConfigurationError."""
        chosen = {name: _settings(name) for name in names} if names else dict(conf.consumers)
        if not chosen:
            raise ConfigurationError("SALON_JOBS['CONSUMERS'] names no source: there is nothing to consume")
        refuse_small_pool(_THREADS + len(chosen))
        self._consumers = [
            Consumer(name, settings, make_source(settings.source, consumer=name), burst=burst)
            for name, settings in chosen.items()
        ]
        self._errors: list[Exception] = []
        self._prune_at = float("-inf")

    def run(self) -> bool:
        """Consume until stopped, or in a burst until all sources are empty. A burst raises the first error."""
        threads = [
            threading.Thread(target=partial(self._run, each), name=f"salon-jobs-consumer-{each.name}", daemon=True)
            for each in self._consumers
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() >= self._prune_at:
                self._prune()
            threads[0].join(_LOOK_S) if threads[0].is_alive() else time.sleep(_LOOK_S)
        connections.close_all()
        if self._errors:
            raise self._errors[0]
        return True

    def stop(self) -> None:
        """Stop all consumers. Idempotent."""
        for each in self._consumers:
            each.stop()

    def facts(self) -> dict[str, object]:
        """Return the readiness facts of each consumer. Raises SourceLost for the first that cannot work."""
        return {"consumers": {each.name: each.facts() for each in self._consumers}}

    def samples(self) -> list[Sample]:
        """Return the metrics of all consumers."""
        return [sample for each in self._consumers for sample in each.samples()]

    def _run(self, consumer: Consumer) -> None:
        try:
            consumer.run()
        except Exception as error:  # raised again by run
            self._errors.append(error)
            self.stop()

    def _prune(self) -> None:
        age = conf.outbox.retain_inbox
        deleted = 0
        try:
            if age is not None:
                deleted = prune_inbox(age)
        except (DatabaseError, InterfaceError) as error:
            log_lost(error, loop="inbox")
        if deleted:
            log_event(logging.INFO, events.PRUNED, inbox=deleted)
        self._prune_at = time.monotonic() + (0.0 if deleted == PRUNE_BATCH else _PRUNE_EVERY_S)
        tidy_connections()


def _settings(name: str) -> ConsumerSettings:
    try:
        return conf.consumers[name]
    except KeyError:
        close = difflib.get_close_matches(name, conf.consumers, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(conf.consumers)) or 'none'}"
        raise ConfigurationError(f"SALON_JOBS['CONSUMERS'] has no {name!r}; {hint}") from None
