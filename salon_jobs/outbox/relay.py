"""Loop that reads messages in order and hands them to their destinations."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from django.db import DatabaseError, InterfaceError, connections

from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.core.tracing import MessageFailure, report_failure
from salon_jobs.db.notify import SECOND_LOOK, Listener
from salon_jobs.outbox import emit, queries
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.destinations import Brokers, Destinations, Progress
from salon_jobs.outbox.marker import Marker, MessagePruner
from salon_jobs.outbox.partitions import Ownership
from salon_jobs.outbox.queries import Failure, Gate, Unresolvable
from salon_jobs.process.heartbeat import Heartbeat, delete_row
from salon_jobs.tenancy.connections import log_lost, refuse_small_pool, tidy_connections

# How often to read what is blocked. When that takes long, it gets at most a tenth of the time. Operators' changes are
# noticed at once.
_REFRESH_S: Final = 1.0
_REFRESH_SHARE: Final = 10
_SWEEP_S: Final = 60.0
# Retries per second and destination of messages that nothing accepts: each costs about half a millisecond, which the
# other messages of the destination need.
_LOOKS_PER_S: Final = 200
_OUTAGE_S: Final = 0.5
# How soon to poll again behind a writer that holds the gate; a rollback sends no notification.
_HELD_S: Final = (0.01, 0.25)
_TOKENS_S: Final = 0.02
_LEAVE_S: Final = 1.0


class Relay:
    """Loop that owns partitions, reads their messages and has them published. Any number of relays may run at once.

    ``owner`` returns the ID of a process row of kind ``relay``; it is called when the work begins. With ``burst``, the
    relay ends when nothing is due any more.
    """

    def __init__(self, owner: Callable[[], int], *, burst: bool = False) -> None:
        self._owner = owner
        self._burst = burst
        self._stop = threading.Event()
        self._forced = threading.Event()
        self._wake = threading.Event()
        self._heard = float("-inf")
        self._refresh_at = float("-inf")
        self._refresh_took_s = 0.0
        self._sweep_at = time.monotonic() + _SWEEP_S
        self._held_since: float | None = None
        self._began = self._looked = time.monotonic()
        self._gate = Gate(0, 0, ())
        self._ownership: Ownership | None = None
        self._marker = Marker(self._wake.set)
        self._streams = Destinations(self._marker, owns=self._owns, on_change=self._wake.set)
        self._listener = Listener(emit.CHANNEL, self._hear)
        self._progress = Progress(self._marker, self._streams)
        self._brokers = Brokers()
        self._pruner = MessagePruner()

    def run(self) -> bool:
        """Relay until stopped; return True when everything that was sent is marked.

        Raises RuntimeError when one of its threads has died: another process must take over.
        """
        ownership = self._ownership = Ownership(self._owner())
        self._marker.start()
        self._listener.start()
        self._pruner.start()
        try:
            self._streams.start()
            while not self._stop.is_set():
                try:
                    wait_s = self._look(ownership)
                    self._looked = time.monotonic()
                except (DatabaseError, InterfaceError) as error:
                    log_lost(error, loop="relay")
                    # What blocks the aggregates of a new partition must be known before it is read.
                    self._refresh_at = float("-inf")
                    wait_s = _OUTAGE_S
                tidy_connections()
                if self._burst and self._is_done():
                    break
                if wait_s and self._wake.wait(wait_s):
                    self._wake.clear()
        except BaseException:
            self._forced.set()
            self._finish(ownership)
            raise
        return self._finish(ownership)

    def stop(self) -> None:
        """Stop after the batches being published; a second call forces it."""
        if self._stop.is_set():
            self._forced.set()
        self._stop.set()
        self._wake.set()

    def facts(self) -> dict[str, object]:
        """Return the readiness facts. Raises NotReady when something is older than the settings allow."""
        age, thresholds = time.monotonic() - self._looked, conf.readiness
        conf.require_alive(age, "the relay has not looked")
        if self._listener.listening != "off":
            heard_s_ago = min(self._listener.silent_for_s(), time.monotonic() - self._began)
            thresholds.require("listener_silent", heard_s_ago, "no wake-up could be heard by the relay")
        thresholds.require("relay_lag", self._progress.lag_s, "the oldest message has waited to be relayed")
        held_s, ownership = self._held_s, self._ownership
        thresholds.require("gate_held", held_s, "an open transaction has held messages back")
        return {
            "relay_looked_s_ago": round(age, 1),
            "partitions": sorted(ownership.mine) if ownership else [],
            "relays": ownership.relays if ownership else 0,
            "gate": {"held_s": round(held_s, 1), "holders": list(self._gate.holders)},
            "listening": self._listener.listening,
            **self._streams.facts(),
            **self._progress.facts(),
            **self._brokers.facts(self._streams.publishers()),
        }

    def samples(self) -> list[Sample]:
        """Return the metrics of the relay and its destinations."""
        samples = [
            Sample(metrics.LOOP_AGE, time.monotonic() - self._looked, ("relay",)),
            Sample(metrics.GATE_HELD, self._held_s),
            Sample(metrics.PARTITIONS_OWNED, len(self._ownership.mine) if self._owns() and self._ownership else 0),
            *self._streams.samples(),
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
        """Wake the loop. It polls a second time, because a coalesced notification follows this one shortly."""
        self._heard = time.monotonic()
        if news == emit.OPERATOR:
            self._refresh_at = min(self._refresh_at, self._heard)
        self._wake.set()

    def _look(self, ownership: Ownership) -> float:
        """Poll once; return how long to wait for news, in seconds. Raises database errors."""
        if not ownership.due_in_s:
            self._beat(ownership)
        self._write_failures()
        if time.monotonic() >= self._refresh_at:
            self._refresh(ownership)
        if not self._marker.alive:
            raise RuntimeError("the marker has ended by an error; see the log")
        self._gate = queries.gate()
        self._note_gate()
        read = self._streams.read(self._gate)
        self._streams.grant()
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_S
            self._streams.sweep()
        self._progress.tell()
        return 0.0 if read else self._wait_s(ownership)

    def _wait_s(self, ownership: Ownership) -> float:
        now = time.monotonic()
        waits = [conf.outbox.poll_interval.total_seconds(), ownership.due_in_s, self._refresh_at - now]
        if now - self._heard < SECOND_LOOK.total_seconds():
            waits.append(SECOND_LOOK.total_seconds() - (now - self._heard))
        if self._held_since is not None:
            waits.append(min(_HELD_S[1], max(_HELD_S[0], (now - self._held_since) / 10)))
        if self._streams.hungry:
            waits.append(_TOKENS_S)
        return max(0.001, min(waits))

    def _beat(self, ownership: Ownership) -> None:
        before = ownership.mine - ownership.leaving
        if lost := ownership.beat():
            log_event(logging.WARNING, events.PARTITIONS_LOST, partitions=sorted(lost))
            # First forget the lost partitions' messages, even of partitions that are ours again by now.
            self._streams.own(before - lost)
            self._streams.lose()
        served = ownership.mine - ownership.leaving
        if lost or before != served:
            self._refresh_at = float("-inf")
            log_event(logging.INFO, events.PARTITIONS_OWNED, partitions=sorted(ownership.mine), relays=ownership.relays)
        self._streams.own(served)
        ownership.trust()
        if ownership.leaving and (released := self._streams.free_of(ownership.leaving)):
            ownership.release(released)

    def _refresh(self, ownership: Ownership) -> None:
        """Reload what operators changed and what is due again."""
        began = time.monotonic()
        # Set before reading, so that a request arriving in the meantime is kept.
        self._refresh_at = began + max(_REFRESH_S, _REFRESH_SHARE * self._refresh_took_s)
        self._streams.know(queries.destinations())
        self._streams.refresh(queries.blocked(ownership.mine - ownership.leaving))
        self._refresh_took_s = time.monotonic() - began

    def _write_failures(self) -> None:
        for stream in self._streams.all():
            failures = stream.take_failures()
            if failures:
                self._write(stream, failures)
            for news in stream.outage_news:
                queries.note_outage(stream.aggregate_type, *(("", "") if news is None else (news.code, news.detail)))
                stream.outages_written(1)

    def _write(self, stream: DestinationWorker, failures: list[Failure | Unresolvable]) -> None:
        unresolvable = [each for each in failures if isinstance(each, Unresolvable)]
        wait_s = stream.backlog.on_hold / _LOOKS_PER_S
        news = (
            queries.write_unresolvable(unresolvable, owner=self._owner(), wait_s=wait_s) if unresolvable else set[int]()
        )
        failed = [each for each in failures if isinstance(each, Failure)]
        written = queries.write_failures(failed, owner=self._owner()) if failed else set[int]()
        stream.failures_written(failures)
        _warn_of([each for each in unresolvable if each.message.id in news and not each.answer.quiet])
        for failure in failed:
            if failure.final and failure.message.id in written:
                message = failure.message
                report_failure(
                    MessageFailure(
                        str(message.message_id),
                        message.aggregate_type,
                        message.event,
                        message.store_id,
                        failure.code,
                        failure.tries,
                    )
                )

    def _note_gate(self) -> None:
        """Remember since when the gate has been held while messages wait behind it."""
        if self._gate.bound >= self._gate.allocated:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = time.monotonic()

    def _is_done(self) -> bool:
        """Return, in a burst, whether nothing is left to do now."""
        return self._held_since is None and self._looked_everywhere() and self._marker.idle and self._streams.idle

    def _looked_everywhere(self) -> bool:
        return self._ownership is not None and self._ownership.holds and not self._streams.behind(self._gate)

    def _finish(self, ownership: Ownership) -> bool:
        """Stop the destination workers, mark what was sent, record failures, and release the partitions."""
        log_event(logging.INFO, events.PROCESS_STOPPING, running=self._streams.in_memory)
        self._listener.stop()
        self._pruner.stop()
        end = time.monotonic() + conf.shutdown_interrupt_after.total_seconds()
        clean = self._streams.stop(end, forced=self._forced)
        left_s = conf.shutdown_grace.total_seconds() - conf.shutdown_interrupt_after.total_seconds() - _LEAVE_S
        clean = self._marker.stop(max(1.0, left_s)) and clean
        try:
            tidy_connections()
            self._write_failures()
            # Not those with messages in flight or unmarked: the next relay takes them when our time is over.
            self._streams.own(frozenset())
            ownership.release(self._streams.free_of(ownership.mine))
        except (DatabaseError, InterfaceError) as error:
            log_event(logging.WARNING, events.DATABASE_LOST, loop="relay", error=str(error).strip())
        self._streams.close()
        connections.close_all()
        return clean


def _warn_of(unresolvable: list[Unresolvable]) -> None:
    """Log messages that nothing accepts: one line for those found together, naming the first."""
    if unresolvable:
        first, answer = unresolvable[0].message, unresolvable[0].answer
        log_event(
            logging.WARNING,
            events.MESSAGES_UNRESOLVABLE,
            aggregate_type=first.aggregate_type,
            messages=len(unresolvable),
            message_id=first.message_id,
            aggregate_id=first.aggregate_id,
            event_name=first.event,
            store_id=first.store_id,
            code=answer.code,
            detail=answer.detail,
        )


_RETRY_S: Final = 0.5
# Relay, marker, pruner, heartbeat, and two concurrent health checks.
_THREADS: Final = 6


class EmbeddedRelay:
    """Loop of ``runworker --with-relay``, for its own thread."""

    def __init__(self, presence: Heartbeat) -> None:
        """Prepare without I/O. Raises ConfigurationError when a pool is too small for the threads."""
        refuse_small_pool(_THREADS)
        self._presence = presence
        self._relay = Relay(lambda: self._process_id)
        self._stopping = threading.Event()
        self._process_id = 0

    def run(self) -> bool:
        """Relay until stopped; return True when everything that was sent is marked."""
        if not self._register():
            return True
        try:
            return self._relay.run()
        finally:
            self._leave()

    def stop(self) -> None:
        """Stop after the batches being published; a second call forces it."""
        self._stopping.set()
        self._relay.stop()

    def facts(self) -> dict[str, object]:
        """Return the relay's readiness facts. Raises NotReady."""
        return {"relay": self._relay.facts()}

    def samples(self) -> list[Sample]:
        """Return the metrics of the relay."""
        return self._relay.samples()

    def _register(self) -> bool:
        """Insert the process row, as soon as the database allows; return False if stopped first."""
        while not self._stopping.is_set():
            try:
                self._process_id = self._presence.register_embedded("relay")
            except (DatabaseError, InterfaceError) as error:
                log_event(logging.WARNING, events.DATABASE_LOST, loop="relay", error=str(error).strip())
                tidy_connections()
                self._stopping.wait(_RETRY_S)
            else:
                return True
        return False

    def _leave(self) -> None:
        self._presence.drop(self._process_id)
        try:
            delete_row(self._process_id)
        except (DatabaseError, InterfaceError) as error:  # a rescuer will declare it dead
            log_event(logging.WARNING, events.DATABASE_LOST, loop="relay", error=str(error).strip())
        connections.close_all()
