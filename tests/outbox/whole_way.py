"""Messages from emit to job inside the test's process: relayed into memory, consumed, run on a thread."""

from __future__ import annotations

import json
from typing import Any

from salon_jobs import Discard
from salon_jobs.brokers.memory import MemoryPublisher
from salon_jobs.brokers.publisher import OutgoingMessage
from salon_jobs.brokers.source import Delivery, Envelope
from salon_jobs.conf.sections import read_consumers
from salon_jobs.inbox.processor import Processor
from salon_jobs.models import Process
from tests.outbox.scene import ORDERS, relay_in_burst
from tests.support import change, claim, running_on_a_thread

TASKS = {"order.created": "test-store", "noted": "test-system"}


def delivered(message: OutgoingMessage) -> Delivery:
    """Deliver what was published, as a broker with headers does."""
    envelope = Envelope(
        message_id=str(message.message_id),
        event=message.event,
        payload=message.payload,
        producer=message.producer,
        store_id="" if message.store_id is None else str(message.store_id),
        headers=json.loads(message.headers),
    )
    return Delivery(count=1, raw="", handle=None, envelope=envelope)


def processor(**settings: Any) -> Processor:
    """Make a consumer of the orders."""
    given = {"SOURCE": ORDERS, "TASKS": TASKS, **settings}
    return Processor("billing", read_consumers({"billing": given})["billing"], using="default")


def relay_and_consume() -> None:
    """Relay what is due, and turn it into jobs."""
    assert relay_in_burst()
    result = processor().process([delivered(message) for message in MemoryPublisher.published])
    assert result.enqueued == len(MemoryPublisher.published)


def run_all(*, attempts: int = 1) -> None:
    """Run what is due on a worker's thread; repeat for queued retries until the attempts are used up."""
    process = Process.objects.create(kind="worker", hostname="test", pid=1)
    for attempt in range(attempts):
        if attempt:
            change("UPDATE salon_jobs_job SET run_at = now() WHERE state = 'queued'")
        with running_on_a_thread(process.pk, claim(process.pk)):
            pass
    process.delete()


def fail(**_: object) -> None:
    """Fail, as a task's handler."""
    raise RuntimeError("the till is closed")


def discard(**_: object) -> None:
    raise Discard("gone")


def make_due() -> None:
    """Make the messages due that wait for their retry."""
    change("UPDATE salon_jobs_message SET retry_at = now()")
    change("UPDATE salon_jobs_blocked_aggregate SET retry_at = now()")
