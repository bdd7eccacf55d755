"""Loop that reads messages in order and hands them to their destinations."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from django.db import Error

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.tracing import MessageFailure, report_failure
from salon_jobs.db.notify import SECOND_POLL
from salon_jobs.outbox import emit, queries
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.destinations import Destinations, RelayProgress
from salon_jobs.outbox.marker import Marker, MessagePruner
from salon_jobs.outbox.partitions import Ownership
from salon_jobs.outbox.queries import Failure, Gate
from salon_jobs.process.heartbeat import Heartbeat, delete_row
from salon_jobs.process.listener import Listener
from salon_jobs.process.loop import Loop
from salon_jobs.tenancy.connections import refuse_small_pool

# How often to read what is blocked. When that takes long, it gets at most a tenth of the time. Operators' changes are
# noticed at once.
_REFRESH_S: Final = 1.0
_REFRESH_SHARE: Final = 10
_SWEEP_S: Final = 60.0
# Retries per second and destination of messages that nothing accepts: each costs about half a millisecond, which the
# other messages of the destination need.
_RETRIES_PER_S: Final = 200
# How soon to poll again behind a writer that holds the gate; a rollback sends no notification.
_HELD_S: Final = (0.01, 0.25)
_TOKENS_S: Final = 0.02
_LEAVE_S: Final = 1.0


class Relay(Loop):
    """Loop that owns partitions, reads their messages and has them published. Any number of relays may run at once.

    ``owner`` returns the ID of a process row of kind ``relay``; it is called when the work begins. With ``burst``, the
    relay ends when nothing is due any more. ``run`` returns True when everything that was sent is marked, and raises
    RuntimeError when one of the relay's threads has died: another process must take over.
    """

    # By when it was started (``_is_another``). Otherwise CONN_MAX_AGE would have everything read again each time, and
    # no relay that died would seem silent for long enough.
    knows_server = True

    def __init__(self, owner: Callable[[], int], *, using: str, burst: bool = False) -> None:
        super().__init__("relay", using=using)
        self._owner = owner
        self._burst = burst
        self._forced = threading.Event()
        self._heard = float("-inf")
        self._refresh_at = float("-inf")
        self._refresh_took_s = 0.0
        self._sweep_at = time.monotonic() + _SWEEP_S
        self._held_since: float | None = None
        self._gate = Gate(0, 0, (), 0.0)
        # Servers that have answered, by when they were started.
        self._servers: set[float] = set()
        self._ownership: Ownership | None = None
        self._marker = Marker(self.wake, using=using)
        self._destinations = Destinations(self._marker, owns=self._owns, on_change=self.wake, using=using)
        self._listener = Listener(emit.CHANNEL, self._hear, using=using)
        self._progress = RelayProgress(self._marker, self._destinations)
        self._pruner = MessagePruner(using=using)
        self._process_id = 0

    def stop(self) -> None:
        """Stop after the batches being published; a second call forces it."""
        if self.stopping.is_set():
            self._forced.set()
        super().stop()

    def poll(self) -> float:
        """Poll once; return how long to wait for news, in seconds. Raises database errors."""
        try:
            wait_s = self._poll(self._ownership or self._begin())
        except Error:
            raise
        except BaseException:
            self._forced.set()
            raise
        if self._burst:
            all_read = self._owns() and self._held_since is None and not self._destinations.behind(self._gate)
            if all_read and self._marker.idle and self._destinations.idle:
                self.stopping.set()
        return wait_s

    def on_outage(self) -> None:
        """Send nothing that was read, and begin again with what the database has by then.

        It may be a promoted standby that lacks the last transactions. The next round makes sure of the partitions,
        then of what is blocked, before the first page is read.
        """
        self._destinations.forget()
        self._refresh_at = float("-inf")
        if self._ownership is not None:
            self._ownership.doubt()

    def finish(self) -> bool:
        """Stop the destination workers, mark what was sent, record failures, and release the partitions."""
        log_event(logging.INFO, events.PROCESS_STOPPING, running=self._destinations.in_memory)
        self._listener.stop()
        self._pruner.stop()
        self._pruner.join()
        end = time.monotonic() + conf.shutdown_interrupt_after.total_seconds()
        clean = self._destinations.stop(end, forced=self._forced)
        left_s = conf.shutdown_grace.total_seconds() - conf.shutdown_interrupt_after.total_seconds() - _LEAVE_S
        clean = self._marker.stop_within(max(1.0, left_s)) and clean
        if (ownership := self._ownership) is not None:

            def leave() -> None:
                self._write_failures()
                # Not those with messages in flight or unmarked: the next relay takes them when our time is over.
                self._destinations.own(frozenset())
                ownership.release(self._destinations.free_of(ownership.mine))

            self.outage.attempt(leave)
        self._destinations.close()
        return clean

    def facts(self) -> dict[str, object]:
        """Return the readiness facts. Raises NotReady when the relay has not polled, or a broker does not answer."""
        conf.require_alive(self.polled_s_ago, "the relay has not polled")
        held_s, ownership = self._held_s, self._ownership
        return {
            "relay_polled_s_ago": round(self.polled_s_ago, 1),
            "partitions": sorted(ownership.mine) if ownership else [],
            "relays": ownership.relays if ownership else 0,
            "gate": {"held_s": round(held_s, 1), "holders": list(self._gate.holders)},
            "listening": self._listener.listening,
            **self._destinations.facts(),
            **self._progress.facts(),
        }

    def samples(self) -> list[Sample]:
        samples = [
            Sample(metrics.LOOP_AGE, self.polled_s_ago, ("relay",)),
            Sample(metrics.GATE_HELD, self._held_s),
            Sample(metrics.PARTITIONS_OWNED, len(self._ownership.mine) if self._owns() and self._ownership else 0),
            *self._destinations.samples(),
            *self._progress.samples(),
        ]
        if self._listener.listening != "off":
            samples.append(Sample(metrics.LISTENING, self._listener.listening, ("relay",)))
        return samples

    @property
    def _held_s(self) -> float:
        since = self._held_since
        return 0.0 if since is None else time.monotonic() - since

    def _owns(self) -> bool:
        return self._ownership is not None and self._ownership.holds

    def _hear(self, news: str) -> None:
        """Wake the loop. It polls a second time soon, for messages whose commits this notification stands for too."""
        self._heard = time.monotonic()
        if news == emit.OPERATOR:
            self._refresh_at = min(self._refresh_at, self._heard)
        self.wake()

    def _begin(self) -> Ownership:
        self._process_id = self._owner()
        self._marker.start()
        self._listener.start()
        self._pruner.start()
        self._destinations.start()
        self._ownership = Ownership(self._process_id, using=self.using)
        return self._ownership

    def _poll(self, ownership: Ownership) -> float:
        if not ownership.due_in_s:
            self._beat(ownership)
        self._write_failures()
        if time.monotonic() >= self._refresh_at or self._destinations.drained:
            self._refresh(ownership)
        if not self._marker.is_alive:
            raise RuntimeError("the marker ended with an error; see the log")
        before, self._gate = self._gate, queries.gate(using=self.using)
        if self._is_another(self._gate.server) or self._gate.allocated < before.allocated:
            self.on_outage()
            return 0.0
        if self._gate.bound >= self._gate.allocated:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = time.monotonic()
        count = self._destinations.read(self._gate)
        self._destinations.grant()
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_S
            self._destinations.sweep()
        self._progress.log()
        return 0.0 if count else self._wait_s(ownership)

    def _is_another(self, server: float) -> bool:
        """Return whether a server answers that has not answered before.

        A pooler may go on with another primary and close no connection. Where it goes to several servers, each counts
        only once.
        """
        is_another = bool(self._servers) and server not in self._servers
        self._servers.add(server)
        return is_another

    def _wait_s(self, ownership: Ownership) -> float:
        now = time.monotonic()
        waits = [conf.outbox.poll_interval.total_seconds(), ownership.due_in_s, self._refresh_at - now]
        if now - self._heard < SECOND_POLL.total_seconds():
            waits.append(SECOND_POLL.total_seconds() - (now - self._heard))
        if self._held_since is not None:
            waits.append(min(_HELD_S[1], max(_HELD_S[0], (now - self._held_since) / 10)))
        if self._destinations.need_tokens:
            waits.append(_TOKENS_S)
        return max(0.001, min(waits))

    def _beat(self, ownership: Ownership) -> None:
        before = ownership.mine - ownership.leaving
        if lost := ownership.beat():
            log_event(logging.WARNING, events.PARTITIONS_LOST, partitions=sorted(lost))
            # First forget the lost partitions' messages, even of partitions that are ours again by now.
            self._destinations.own(before - lost)
            self._destinations.lose()
        served = ownership.mine - ownership.leaving
        if lost or before != served:
            self._refresh_at = float("-inf")
            log_event(logging.INFO, events.PARTITIONS_OWNED, partitions=sorted(ownership.mine), relays=ownership.relays)
        self._destinations.own(served)
        ownership.trust()
        if ownership.leaving and (released := self._destinations.free_of(ownership.leaving)):
            ownership.release(released)

    def _refresh(self, ownership: Ownership) -> None:
        """Reload what operators changed and what is due again."""
        began = time.monotonic()
        # Set before reading, so that a request arriving in the meantime is kept.
        self._refresh_at = began + max(_REFRESH_S, _REFRESH_SHARE * self._refresh_took_s)
        self._destinations.serve(queries.destinations(using=self.using))
        self._destinations.refresh(queries.blocked(ownership.mine - ownership.leaving, using=self.using))
        self._refresh_took_s = time.monotonic() - began

    def _write_failures(self) -> None:
        for worker in self._destinations.all():
            if failures := worker.take_failures():
                self._write(worker, failures)
            outage = worker.breaker.outage
            if worker.written_outage != (code := outage.code if outage else ""):
                queries.write_outage(worker.aggregate_type, outage, using=self.using)
                worker.written_outage = code

    def _write(self, worker: DestinationWorker, failures: Sequence[Failure]) -> None:
        unresolvable = [failure for failure in failures if not failure.tries]
        charged = [failure for failure in failures if failure.tries]
        new: set[int] = set()
        if unresolvable:
            wait_s = worker.backlog.on_hold / _RETRIES_PER_S
            new = queries.write_unresolvable(unresolvable, owner=self._process_id, wait_s=wait_s, using=self.using)
        written = queries.write_failures(charged, owner=self._process_id, using=self.using) if charged else set[int]()
        worker.failures_written(failures)
        newly_blocked = [each for each in unresolvable if each.message.id in new and not each.answer.quiet]
        if newly_blocked:  # one line for those found together, naming the first
            first = newly_blocked[0].log_fields()
            log_event(logging.WARNING, events.MESSAGES_UNRESOLVABLE, **first, messages=len(newly_blocked))
        for failure in charged:
            message = failure.message
            if failure.final and message.id in written:
                about = (str(message.message_id), message.aggregate_type, message.event, message.store_id)
                report_failure(MessageFailure(*about, failure.answer.code, failure.tries))


# Relay, marker, pruner, heartbeat, and two concurrent health checks.
_THREADS: Final = 6


class EmbeddedRelay(Relay):
    """Relay of ``runworker --with-relay``, for its own thread. It registers as soon as the database allows."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        """Prepare without I/O. Raises ConfigurationError when a pool is too small for the threads."""
        refuse_small_pool(_THREADS, using=heartbeat.using)
        super().__init__(lambda: heartbeat.register_embedded("relay"), using=heartbeat.using)
        self._heartbeat = heartbeat

    def finish(self) -> bool:
        """Finish as a relay does, and delete the process row; if that fails, a rescuer will declare it dead."""
        try:
            return super().finish()
        finally:
            self._heartbeat.drop(self._process_id)
            if self._process_id:
                self.outage.attempt(lambda: delete_row(self._process_id, using=self.using))

    def facts(self) -> dict[str, object]:
        return {"relay": super().facts()}
