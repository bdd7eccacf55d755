"""Relays that run in threads of the test, or by hand, and publish into memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.utils import timezone

from salon_jobs import emit
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage, PublishFailure, Verdict
from salon_jobs.core.errors import NotReady
from salon_jobs.models import Process
from salon_jobs.outbox import Draft
from salon_jobs.outbox.failures import Failure
from salon_jobs.outbox.relay import Relay
from tests.metrics import of, shown
from tests.support import change, seen
from tests.waiting import LIMIT_S, eventually

ORDERS = "rn::memory:::orders"


def emitted(aggregate_id: str = "", *, event: str = "order.created", number: int = 0, to: str = ORDERS) -> UUID:
    """Emit one message in a transaction of its own."""
    with transaction.atomic():
        return emit(to, aggregate_id=aggregate_id, event=event, payload={"number": number})


def draft(aggregate_id: str = "", number: int = 0, *, to: str = ORDERS) -> Draft:
    return Draft(aggregate_type=to, aggregate_id=aggregate_id, event="e", payload={"number": number})


def message(id_: int, aggregate_id: str = "a", partition: int = 0, **fields: Any) -> OutgoingMessage:
    """Make a message as a relay reads it; by default its number is its UUID."""
    message_id = fields.pop("message_id", UUID(int=id_))
    made = OutgoingMessage(id_, message_id, ORDERS, aggregate_id, "e", "{}", "{}", None, "test", 0.0, None, partition)
    return made._replace(**fields)


def failure(of: OutgoingMessage, verdict: Verdict = Verdict.RETRY) -> Failure:
    return Failure(of, PublishFailure(verdict, "T"), tries=int(verdict is Verdict.RETRY))


def answer_with(
    verdict: Verdict,
    code: str = "TEST.NO",
    *,
    detail: str = "",
    times: int | None = None,
    aggregate: str = "",
    quiet: bool = False,
) -> None:
    """Have the memory broker give this answer ``times`` times, for aggregates whose IDs begin like this."""
    left = [times]

    def answer(message: OutgoingMessage) -> PublishFailure | None:
        if not message.aggregate_id.startswith(aggregate) or left[0] == 0:
            return None
        if left[0] is not None:
            left[0] -= 1
        return PublishFailure(verdict, code, detail, quiet)

    MemoryPublisher.answer = answer


class RelayByHand(Relay):
    """Relay whose rounds the test runs by ``poll``, and whose heartbeats by ``beat``."""

    def beat(self) -> None:
        self._beat()

    @property
    def owned(self) -> float:
        """How many partitions it says it owns."""
        return of(shown(self.samples()), "relay_partitions")


def _registered() -> Process:
    # No heartbeat runs here, so make it count as alive until it is deleted.
    later = timezone.now() + timedelta(hours=1)
    return Process.objects.create(kind="relay", hostname="test", pid=1, heartbeat_at=later)


@contextmanager
def relay_by_hand() -> Generator[RelayByHand]:
    process = _registered()
    relay = RelayByHand(lambda: process.pk, using="default")
    try:
        yield relay
    finally:
        relay.stop()
        relay.finish()
        process.delete()


def relay_in_burst() -> bool:
    """Relay what is due, in this thread."""
    process = _registered()
    try:
        return Relay(lambda: process.pk, burst=True, using="default").run()
    finally:
        process.delete()


class RunningRelay:
    """Relay in a thread of its own."""

    def __init__(self, relay: Relay | None = None) -> None:
        self.process_id = 0 if relay else int(_registered().pk)
        self.relay = relay or Relay(lambda: self.process_id, using="default")
        self.clean: bool | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> bool:
        """Stop the relay; return whether it ended cleanly. Idempotent."""
        self.relay.stop()
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        Process.objects.filter(pk=self.process_id).delete()
        return bool(self.clean)

    def facts(self) -> dict[str, Any]:
        return self.relay.facts()

    def wait_for_partitions(self, count: int = 16) -> None:
        def owned() -> int:
            try:
                return len(self.facts()["partitions"])
            except NotReady:  # as after a stall of the machine
                return -1

        eventually(owned, count)

    def _run(self) -> None:
        self.clean = self.relay.run()


@contextmanager
def relaying() -> Generator[RunningRelay]:
    running = RunningRelay()
    try:
        yield running
    finally:
        running.stop()


@contextmanager
def open_writer() -> Generator[None]:
    """Hold the gate with a transaction of the web role that wrote number 1 of aggregate "a" first."""
    with transaction.atomic(using="web"), connections["web"].cursor() as cursor:
        cursor.execute("SELECT salon_jobs_emit(%s, 'a', 'e', '{\"number\": 1}', wake => false)", [ORDERS])
        yield
    connections["web"].close()


def arrived(to: str = ORDERS) -> list[tuple[str, int]]:
    """Return what arrived, as (aggregate id, number)."""
    messages = [message for message in list(MemoryPublisher.published) if message.aggregate_type == to]
    return [(message.aggregate_id, json.loads(message.payload)["number"]) for message in messages]


def numbers_by_aggregate() -> dict[str, list[int]]:
    """Return the numbers that arrived of each aggregate, in order."""
    numbers: dict[str, list[int]] = {}
    for aggregate, number in arrived():
        numbers.setdefault(aggregate, []).append(number)
    return numbers


def statuses() -> dict[str, int]:
    """Count the messages by status."""
    return dict(seen("SELECT status, count(*) FROM salon_jobs_message GROUP BY 1"))


def ids() -> list[int]:
    return [row[0] for row in seen("SELECT id FROM salon_jobs_message ORDER BY id")]


def blocked_count() -> int:
    return int(seen("SELECT count(*) FROM salon_jobs_blocked_aggregate")[0][0])


def outages() -> list[str]:
    """Return the codes of the outages, by destination; "" for none."""
    return [row[0] for row in seen("SELECT outage_code FROM salon_jobs_destination ORDER BY aggregate_type")]


def fill(
    count: int,
    status: str = "'pending'",
    *,
    to: str = ORDERS,
    aggregate_id: str = "''",
    event: str = "'made'",
    payload: str = "'{}'",
    store_id: str = "NULL",
    created_at: str = "now()",
) -> None:
    """Write messages whose columns are SQL expressions of ``n``, the number of each; they ended when they began."""
    change(
        "INSERT INTO salon_jobs_message (message_id, aggregate_type, aggregate_id, event, payload, store_id, status,"
        f" created_at, sent_at, ended_at) SELECT gen_random_uuid(), %s, {aggregate_id}, {event}, ({payload})::json,"
        f" {store_id}, s, at, CASE s WHEN 'published' THEN at END, CASE WHEN s IN ('failed', 'skipped') THEN at END"
        f" FROM generate_series(1, %s) AS n CROSS JOIN LATERAL (SELECT {status}, {created_at}) AS of_n (s, at)"
        " ORDER BY n",
        to,
        count,
    )
