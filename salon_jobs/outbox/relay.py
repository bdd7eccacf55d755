"""Loop that reads messages in order and hands them to the workers of their destinations."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from itertools import chain
from typing import Any, Final

from django.db import Error

from salon_jobs.brokers.publisher import OutgoingMessage, Publisher
from salon_jobs.conf import settings as conf
from salon_jobs.core import events, metrics
from salon_jobs.core.errors import require_within
from salon_jobs.core.events import log_event
from salon_jobs.core.metrics import Sample
from salon_jobs.db.notify import SECOND_POLL
from salon_jobs.db.pools import refuse_small_pool
from salon_jobs.outbox import emit, queries
from salon_jobs.outbox.destination_worker import DestinationWorker
from salon_jobs.outbox.failures import write_failures
from salon_jobs.outbox.marker import Marker, MessagePruner
from salon_jobs.outbox.partitions import Ownership
from salon_jobs.outbox.progress import RelayProgress
from salon_jobs.outbox.queries import Blocked, Gate, PageRequest
from salon_jobs.outbox.relay_publishers import BROKER_SILENT, Publishers
from salon_jobs.process.heartbeat import EmbeddedRow, Heartbeat
from salon_jobs.process.listener import Listener
from salon_jobs.process.loop import Loop

# How often to read the blocked aggregates; a slow read gets at most a tenth of the time. Operators' changes are noticed
# at once.
_REFRESH_S: Final = 1.0
_REFRESH_SHARE: Final = 10
_DISCOVER_S: Final = 1.0
_SWEEP_S: Final = 60.0
# Messages that a sweep reads at once, and blocked aggregates that a read leaves out.
_SWEPT: Final = 500
# Per round and destination, since the relay must also send heartbeats and read new messages. Heads are read together.
_HEADS: Final = 500
_PAGES: Final = 100
# Destinations, with one thread each. Anyone who runs SQL as the web role can name any number.
_MOST: Final = 1000
_LOG_LEFT_OUT_S: Final = 60.0
# A destination gets at least one token per second, but relays compete for it.
_STARVED_FOR_S: Final = 60.0
# How soon to poll again behind a writer that holds the gate; a rollback sends no notification.
_HELD_S: Final = (0.01, 0.25)
_TOKENS_S: Final = 0.02
_LEAVE_S: Final = 1.0


class Relay(Loop):
    """Loop that owns partitions, reads their messages and has them published. Any number of relays may run at once.

    ``owner`` returns the ID of a process row of kind ``relay``; it is called when the work begins. With ``burst``, the
    relay ends when nothing is due any more. ``run`` returns True when every sent message is marked, and raises
    RuntimeError when one of the relay's threads has died: another process must take over.
    """

    # Recognized by its start time (``poll``). Otherwise each CONN_MAX_AGE would cause everything to be read again, and
    # no relay that died would seem silent for long enough.
    knows_server = True

    def __init__(self, owner: Callable[[], int], *, using: str, burst: bool = False) -> None:
        super().__init__("relay", using=using)
        self._owner = owner
        self._burst = burst
        self._forced = threading.Event()
        self._heard = float("-inf")
        # Whether an operator has changed something since the last refresh.
        self._told = False
        # Whether partitions have come from relays that may have died in an outage.
        self._inherits = False
        self._refresh_at = self._discover_at = self._log_left_out_at = float("-inf")
        self._refresh_took_s = 0.0
        self._sweep_at = time.monotonic() + _SWEEP_S
        self._held_since: float | None = None
        self._gate = Gate(0, 0, (), 0.0)
        # Servers that have answered, by their start times.
        self._servers: set[float] = set()
        # 0 until the work begins.
        self._process_id = 0
        self._ownership = Ownership(0, using=using)
        self._partitions: frozenset[int] = frozenset()
        self._publishers = Publishers(using=using)
        self._workers: dict[str, DestinationWorker] = {}
        # Destinations with a row, as of the last query.
        self._registered: set[str] = set()
        self._marker = Marker(self.wake, using=using)
        self._listener = Listener(emit.CHANNEL, self._hear, using=using)
        self._pruner = MessagePruner(using=using)
        self._progress = RelayProgress(self._marker)

    def stop(self) -> None:
        """Stop after the batches being published; a second call forces it."""
        if self.stopping.is_set():
            self._forced.set()
        super().stop()

    def poll(self) -> float:
        """Do one round; return how long to wait for news, in seconds. Raises database errors."""
        self._publishers.ping(self._in_use)
        try:
            wait_s = self._do_round()
        except Error:
            raise
        except BaseException:
            self._forced.set()
            raise
        if self._burst and self._owns() and self._held_since is None and self._marker.idle:
            # Paused and unreachable destinations keep their messages.
            others = [worker for worker in self.workers if not worker.is_blocked]
            if not any(worker.backlog.is_behind(self._gate.bound) or not worker.idle for worker in others):
                self.stopping.set()
        return wait_s

    def _do_round(self) -> float:
        """Relay waiting messages; return the seconds to wait for news."""
        if not self._process_id:
            self._process_id = self._owner()
            self._ownership = Ownership(self._process_id, using=self.using)
            self._marker.start()
            self._listener.start()
            self._pruner.start()
            self._publishers.start()
        if not self._ownership.due_in_s:
            self._beat()
        self._write_failures()
        if time.monotonic() >= self._refresh_at or any(worker.backlog.drained for worker in self.workers):
            self._refresh()
        if not self._marker.is_alive:
            raise RuntimeError("the marker ended with an error; see the log")
        for worker in self.workers:
            if not worker.thread.is_alive():
                raise RuntimeError(f"the worker of {worker.destination} ended with an error; see the log")
        before, self._gate = self._gate, queries.gate(using=self.using)
        # A pooler may go on with another primary and close no connection. If it leads to several servers, each counts
        # only once.
        is_another = bool(self._servers) and self._gate.server not in self._servers
        self._servers.add(self._gate.server)
        if is_another or self._gate.allocated < before.allocated:
            self.on_outage()
            return 0.0
        if self._gate.bound >= self._gate.allocated:
            self._held_since = None
        elif self._held_since is None:
            self._held_since = time.monotonic()
        if time.monotonic() >= self._discover_at:
            self._discover()
            self._discover_at = time.monotonic() + _DISCOVER_S
        count = self._read_on() + self._catch_up()
        wanted = [
            (each.destination, short, each.rate)
            for each in self.workers
            if each.rate is not None and (short := each.wanted_tokens) > 0
        ]
        if wanted:
            for name, tokens in queries.grant_tokens(wanted, using=self.using).items():
                self._workers[name].give_tokens(tokens)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + _SWEEP_S
            self._sweep()
        self._progress.log(self.workers)
        return 0.0 if count else self._wait_s()

    def on_outage(self) -> None:
        """Send no message that was read, and begin again with the current state of the database.

        It may be a promoted standby that lacks the last transactions. The next round confirms the partitions first,
        then reads the blocked aggregates, and then the first page.
        """
        for worker in self.workers:
            worker.forget()
        self._refresh_at = float("-inf")
        self._ownership.suspend()

    def finish(self) -> bool:
        """Stop the destination workers, mark sent messages, record failures, and release the partitions."""
        log_event(logging.INFO, events.PROCESS_STOPPING, running=sum(each.backlog.size for each in self.workers))
        self._listener.stop()
        self._pruner.stop()
        self._pruner.join()
        end = time.monotonic() + conf.shutdown_interrupt_after.total_seconds()
        for worker in self.workers:
            worker.stop()
        while any(worker.thread.is_alive() for worker in self.workers):
            if self._forced.wait(0.02) or time.monotonic() > end:
                for worker in self.workers:
                    worker.stop(force=True)
                break
        for worker in self.workers:
            worker.thread.join(2.0)
        have_ended = not any(worker.thread.is_alive() for worker in self.workers)
        left_s = conf.shutdown_grace.total_seconds() - conf.shutdown_interrupt_after.total_seconds() - _LEAVE_S
        is_marked = self._marker.stop_within(max(1.0, left_s))

        def leave() -> None:
            self._write_failures()
            # Not those with messages in flight or unmarked: the next relay takes them when our time is over.
            self._serve(frozenset())
            self._release(self._ownership.owned)

        if self._process_id:
            self.outage.attempt(leave)
        self._publishers.close()
        return have_ended and is_marked

    @property
    def workers(self) -> list[DestinationWorker]:
        """The workers of the destinations, as of now: readiness and metrics are read on other threads."""
        return list(self._workers.values())

    def facts(self) -> dict[str, object]:
        """Return the readiness facts.

        Raises NotReady when the relay has not polled, a broker does not answer, or a destination gets no tokens.
        """
        conf.require_alive(self.polled_s_ago, "the relay has not polled")
        workers = self.workers
        for worker in workers:
            what = f"{worker.destination!r} has messages to send, but gets no tokens of its rate"
            require_within(_STARVED_FOR_S, worker.starved_s, what)
        return {
            "relay_polled_s_ago": round(self.polled_s_ago, 1),
            "partitions": sorted(self._ownership.owned),
            "relays": self._ownership.relays,
            "gate": {"held_s": round(self._held_s, 1), "holders": list(self._gate.holders)},
            "listening": self._listener.listening,
            "destinations": {worker.destination: worker.facts() for worker in workers},
            "brokers": self._publishers.facts(self._in_use),
            **self._progress.facts(),
        }

    def samples(self) -> list[Sample]:
        samples = [
            Sample(metrics.LOOP_AGE, self.polled_s_ago, ("relay",)),
            Sample(metrics.GATE_HELD, self._held_s),
            Sample(metrics.PARTITIONS_OWNED, len(self._ownership.owned) if self._owns() else 0),
            *chain.from_iterable(worker.samples() for worker in self.workers),
            *self._progress.samples(),
        ]
        if self._listener.listening != "off":
            samples.append(Sample(metrics.LISTENING, self._listener.listening, ("relay",)))
        return samples

    @property
    def _in_use(self) -> list[Publisher]:
        return [worker.publisher for worker in self.workers if not worker.paused]

    @property
    def _held_s(self) -> float:
        since = self._held_since
        return 0.0 if since is None else time.monotonic() - since

    def _owns(self) -> bool:
        return self._ownership.holds

    def _hear(self, news: str) -> None:
        """Wake the loop. It polls a second time soon, since this notification may stand for several commits."""
        self._heard = time.monotonic()
        if news == emit.OPERATOR:
            self._told = True
            self._refresh_at = min(self._refresh_at, self._heard)
        self.wake()

    def _beat(self) -> None:
        """Send a heartbeat for the partitions, stop lost ones, serve new ones, release excess ones."""
        ownership = self._ownership
        before = ownership.staying
        if lost := ownership.beat():
            log_event(logging.WARNING, events.PARTITIONS_LOST, partitions=sorted(lost))
            # First forget the lost partitions' messages, even of partitions that are now ours again.
            self._serve(before - lost)
            for worker in self.workers:
                worker.abandon_batch()
        if lost or before != ownership.staying:
            self._refresh_at = float("-inf")
            self._inherits = True
            log_event(
                logging.INFO, events.PARTITIONS_OWNED, partitions=sorted(ownership.owned), relays=ownership.relays
            )
        self._serve(ownership.staying)
        ownership.confirm()
        self._release(ownership.leaving)

    def _serve(self, partitions: frozenset[int]) -> None:
        if partitions != self._partitions:
            self._partitions = partitions
            for worker in self.workers:
                worker.backlog.own(partitions)

    def _release(self, partitions: Collection[int]) -> None:
        """Give back the partitions among these that have nothing in flight."""
        free = frozenset(p for p in partitions if not any(worker.uses(p) for worker in self.workers))
        if free:
            self._ownership.release(free)

    def _write_failures(self) -> None:
        for worker in self.workers:
            if failures := worker.take_failures():
                on_hold = worker.backlog.on_hold
                write_failures(failures, owner=self._process_id, on_hold=on_hold, using=self.using)
                worker.failures_written(failures)
            outage = worker.breaker.outage
            if outage is None and not worker.paused:
                outage = self._publishers.outage(worker.publisher)
            if outage is None and self._still_inherits(worker):
                continue
            worker.inherited_outage = False
            if worker.written_outage != (code := outage.code if outage else ""):
                queries.write_outage(worker.destination, outage, using=self.using)
                worker.written_outage = code

    def _still_inherits(self, worker: DestinationWorker) -> bool:
        """Return whether an outage that another relay wrote goes on, as far as this one knows by now."""
        if not worker.inherited_outage:
            return False
        return worker.written_outage != BROKER_SILENT or not self._publishers.answers(worker.publisher)

    def _refresh(self) -> None:
        """Reload operators' changes, and the aggregates that are due again."""
        began = time.monotonic()
        # Set before reading, so that a request arriving in the meantime is kept.
        self._refresh_at = began + max(_REFRESH_S, _REFRESH_SHARE * self._refresh_took_s)
        self._drop_ended()  # before a destination is resumed
        destinations = queries.destinations(using=self.using)
        self._registered = set(destinations)
        for name, (paused, outage) in destinations.items():
            worker = self._worker(name)
            worker.paused = paused
            if not outage and worker.written_outage:  # the row was lost, or the outage ended for another relay only
                worker.written_outage = None
            elif outage and self._inherits and not worker.written_outage:
                worker.inherit(outage)
        self._inherits = False
        blocked: defaultdict[str, list[Blocked]] = defaultdict(list)
        for row in queries.blocked(self._ownership.staying, using=self.using):
            blocked[row.aggregate_type].append(row)
        for name in blocked:
            self._worker(name)
        for worker in self.workers:
            worker.backlog.refresh(blocked[worker.destination])
        self._refresh_took_s = time.monotonic() - began

    def _drop_ended(self) -> None:
        """Drop messages that operators have skipped or erased since they were read, however long they wait in memory.

        Whatever was in flight when an operator told so is put back only in an outage: such destinations are looked at
        every time.
        """
        is_told = self._told or self._listener.listening is not True
        self._told = False
        waiting = {each: each.backlog.waiting_ids() for each in self.workers if is_told or each.is_blocked}
        ids = set(chain.from_iterable(waiting.values()))
        if ids and (ended := ids - queries.still_pending(sorted(ids), using=self.using)):
            for worker in waiting:
                worker.backlog.drop(ended)

    def _discover(self) -> None:
        """Serve destinations that messages name and that have no row yet, as long as there may be more."""
        missing = [name for name in queries.message_destinations(using=self.using) if name not in self._registered]
        new = [name for name in missing if name not in self._workers]
        left_out = new[max(0, _MOST - len(self._workers)) :]
        if left_out and time.monotonic() >= self._log_left_out_at:
            self._log_left_out_at = time.monotonic() + _LOG_LEFT_OUT_S
            counts: dict[str, Any] = {"served": _MOST, "left_out": len(left_out)}
            log_event(logging.ERROR, events.DESTINATIONS_LEFT_OUT, **counts, aggregate_type=left_out[0])
        if missing := [name for name in missing if name not in left_out]:
            queries.add_destinations(missing, using=self.using)
            self._registered.update(missing)
            for name in missing:
                self._worker(name)

    def _worker(self, destination: str) -> DestinationWorker:
        worker = self._workers.get(destination)
        if worker is None:
            publisher = self._publishers.of(destination)
            worker = DestinationWorker(destination, publisher, self._marker, owns=self._owns, on_change=self.wake)
            worker.backlog.own(self._partitions)
            self._workers[destination] = worker
            worker.thread.start()
        return worker

    def _read_on(self) -> int:
        """Read on in all partitions, separately for destinations with blocked aggregates; return how many messages."""
        bound, count = self._gate.bound, 0
        together: dict[str, list[PageRequest]] = {}
        for worker in self.workers:
            requests = worker.backlog.page_requests(worker.destination, bound)
            if requests and (blocked := worker.backlog.blocked_aggregates()):
                messages = queries.fetch(requests, bound, without=blocked[:_SWEPT], using=self.using)
                worker.backlog.accept(requests, messages, bound)
                count += len(messages)
            elif requests:
                together[worker.destination] = requests
        if together:
            messages = queries.fetch(list(chain.from_iterable(together.values())), bound, using=self.using)
            count += len(messages)
            found: defaultdict[str, list[OutgoingMessage]] = defaultdict(list)
            for message in messages:
                found[message.aggregate_type].append(message)
            for name, requests in together.items():
                self._workers[name].backlog.accept(requests, found[name], bound)
        return count

    def _catch_up(self) -> int:
        """Read the next page of aggregates that are no longer blocked; return how many pages."""
        pages = 0
        for worker in self.workers:
            blocked_before = worker.backlog.to_catch_up(_HEADS)
            head_ids = [hold.head_id for _, hold, _ in blocked_before if hold.head_id is not None]
            heads = queries.fetch_heads(head_ids, using=self.using)
            room = _PAGES
            for key, hold, upto in blocked_before:
                head = None if hold.head_id is None else heads.get(hold.head_id)
                if head is not None:
                    messages = [head]
                elif room:
                    room -= 1
                    messages = queries.fetch_aggregate(
                        worker.destination,
                        hold.aggregate_id,
                        after=hold.after,
                        upto=upto if isinstance(key, str) else hold.after + 1,
                        take=hold.page,
                        using=self.using,
                    )
                else:
                    continue
                stale = worker.backlog.accept_caught_up(key, hold, messages)
                if stale is not None:
                    queries.forget_head(stale, using=self.using)
                pages += 1
        return pages

    def _sweep(self) -> None:
        """Look for messages that reading has passed over: of writers past the gate, such as logical replication.

        Also unblock aggregates parked by a message that has ended: nothing else would.
        """
        queries.release_ended(self._ownership.staying, using=self.using)
        for worker in self.workers:
            read_upto, in_memory = worker.backlog.read_so_far()
            for partition, upto in read_upto.items():
                name = worker.destination
                messages = queries.fetch_passed_over(
                    name, partition, upto=upto, in_memory=in_memory, take=_SWEPT, using=self.using
                )
                if late_count := worker.backlog.accept_late(messages):
                    fields: dict[str, Any] = {"messages": late_count, "first_id": messages[0].id}
                    log_event(logging.WARNING, events.MESSAGES_PASSED_OVER, aggregate_type=name, **fields)

    def _wait_s(self) -> float:
        now = time.monotonic()
        waits = [conf.outbox.poll_interval.total_seconds(), self._ownership.due_in_s, self._refresh_at - now]
        if now - self._heard < SECOND_POLL.total_seconds():
            waits.append(SECOND_POLL.total_seconds() - (now - self._heard))
        if self._held_since is not None:
            waits.append(min(_HELD_S[1], max(_HELD_S[0], (now - self._held_since) / 10)))
        if any(worker.wanted_tokens > 0 and worker.backlog.waiting for worker in self.workers):
            waits.append(_TOKENS_S)
        return max(0.001, min(waits))


# Relay, marker, pruner, heartbeat, and two concurrent health checks.
_THREADS: Final = 6


class EmbeddedRelay(Relay):
    """Relay of ``runworker --with-relay``, for its own thread. It registers as soon as the database allows."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        """Prepare without I/O. Raises ConfigurationError when a pool is too small for the threads."""
        refuse_small_pool(_THREADS, using=heartbeat.using)
        self._row = EmbeddedRow("relay", heartbeat)
        super().__init__(self._row.insert, using=heartbeat.using)

    def finish(self) -> bool:
        """Finish as a relay does, and delete the process row."""
        try:
            return super().finish()
        finally:
            self._row.delete(self.outage)

    def facts(self) -> dict[str, object]:
        return {"relay": super().facts()}
