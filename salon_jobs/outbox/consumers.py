"""Runs the consumers of one process, each in a thread of its own, and prunes the inbox beside them."""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import log_events
from salon_jobs.core.errors import ConfigurationError
from salon_jobs.core.log_events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.outbox.consumer import Consumer
from salon_jobs.outbox.inbox import PRUNE_BATCH, prune_inbox
from salon_jobs.runtime.connections import refuse_small_pool, tell_lost, tidy_connections
from salon_jobs.sections.consumers import ConsumerSettings
from salon_jobs.sources.registry import make_source

_LOOK_S: Final = 0.2
_PRUNE_EVERY_S: Final = 60.0
# Heartbeat, pruning, two questions about health at a time.
_THREADS: Final = 4


class Consumers:
    """Is the loop of ``consume_queue``."""

    def __init__(self, names: Sequence[str] = (), *, burst: bool = False) -> None:
        """Make the consumers of these names, or all of the settings. No I/O. Raises ConfigurationError."""
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
        """Consume until stopped, or in a burst until all sources are empty. A burst raises what was in the way."""
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
        """Ask all for the end. Idempotent."""
        for each in self._consumers:
            each.stop()

    def facts(self) -> dict[str, object]:
        """Return what readiness shows of each. Raises SourceLost for the first that can not work."""
        return {"consumers": {each.name: each.facts() for each in self._consumers}}

    def samples(self) -> list[Sample]:
        """Return the metrics of all."""
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
            tell_lost(error, loop="inbox")
        if deleted:
            log_event(logging.INFO, log_events.PRUNED, inbox=deleted)
        self._prune_at = time.monotonic() + (0.0 if deleted == PRUNE_BATCH else _PRUNE_EVERY_S)
        tidy_connections()


def _settings(name: str) -> ConsumerSettings:
    try:
        return conf.consumers[name]
    except KeyError:
        close = difflib.get_close_matches(name, conf.consumers, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(conf.consumers)) or 'none'}"
        raise ConfigurationError(f"SALON_JOBS['CONSUMERS'] has no {name!r}; {hint}") from None
