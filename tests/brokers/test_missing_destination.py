"""Shows that a relay lets a destination that does not exist hold up none beside it, and finds it once it does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.outbox.scene import relaying
from tests.servers.base import Broker
from tests.servers.registry import on
from tests.support import change, event_fields, seen
from tests.waiting import eventually

AGGREGATES = ("a", "b", "c", "d")
# All publishers answer alike (test_publishers.py); these two remember what is there.
pytestmark = on("nats", "sns-fifo")


@pytest.fixture
def relay_of(broker: Broker, settings: Any, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have relays publish to the broker under test, and look again soon."""
    outbox = {**settings.SALON_JOBS["OUTBOX"], "POLL_INTERVAL": 0.2, "THROUGHPUT": {"*": None, "sns": 3000}}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": outbox}
    monkeypatch.setattr("salon_jobs.outbox.relay_publishers.make_publisher", lambda _service, using: broker.publisher())
    monkeypatch.setattr("salon_jobs.brokers.aws.topics.AGAIN_S", 0.2)


def emit_round(destination: str, number: int) -> None:
    change(
        "SELECT salon_jobs_emit(%s, aggregate, 'order.created', %s::json, producer => 'contract-tests')"
        " FROM unnest(%s::text[]) AS aggregate",
        destination,
        json.dumps({"number": number}),
        list(AGGREGATES),
    )


def statuses(destination: str) -> dict[str, int]:
    counted = "SELECT status, count(*) FROM salon_jobs_message WHERE aggregate_type = %s GROUP BY 1"
    return dict(seen(counted, destination))


def is_out(destination: str) -> bool:
    [(out,)] = seen(
        "SELECT bool_or(outage_code <> '') FROM salon_jobs_destination WHERE aggregate_type = %s", destination
    )
    return bool(out)


def arrived(broker: Broker, destination: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for envelope in broker.received(destination):
        found.setdefault(envelope.aggregate_id, []).append(json.loads(envelope.payload)["number"])
    return found if broker.keeps_order else {aggregate: sorted(numbers) for aggregate, numbers in found.items()}


def test_missing_destination_holds_up_no_other(
    broker: Broker, destination: str, missing: str, relay_of: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs no try, and warns once."""
    with relaying() as relay:
        emit_round(missing, 0)
        eventually(lambda: is_out(missing))
        for number in range(3):
            emit_round(destination, number)
        emit_round(missing, 1)
        eventually(lambda: statuses(destination), {"published": 12})
        assert statuses(missing) == {"pending": 8}
        # It was tried again meanwhile, or is: each time one message, and nothing is written for it.
        eventually(lambda: relay.facts()["destinations"][missing]["in_memory"], 8)
        assert seen("SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(0,)]
        assert not is_out(destination)
        assert [each["aggregate_type"] for each in event_fields(caplog, "destination_unresolvable")] == [missing]
        assert broker.destination(missing.rpartition(":")[2].removesuffix(".fifo")).endswith(missing.rpartition(":")[2])
        eventually(lambda: statuses(missing), {"published": 8})
        eventually(lambda: is_out(missing), False)
    assert arrived(broker, destination) == {aggregate_id: [0, 1, 2] for aggregate_id in AGGREGATES}
    assert arrived(broker, missing) == {aggregate_id: [0, 1] for aggregate_id in AGGREGATES}
    assert len(event_fields(caplog, "destination_unresolvable")) == 1
    assert seen("SELECT max(retry_count) FROM salon_jobs_message") == [(0,)]
