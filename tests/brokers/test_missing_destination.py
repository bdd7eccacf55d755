"""Shows that a relay lets a destination that does not exist hold up none beside it, and finds it once it does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.outbox.scene import relaying
from tests.servers.base import Broker
from tests.support import change, seen
from tests.waiting import eventually

AGGREGATES = ("a", "b", "c", "d")
# All publishers answer alike (test_publishers.py); these two remember what is there.
pytestmark = pytest.mark.parametrize("running", ["nats", "sns-fifo"], indirect=True)


@pytest.fixture
def relay_of(broker: Broker, settings: Any, database: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have relays publish to the broker under test, and look again soon."""
    outbox = {**settings.SALON_JOBS["OUTBOX"], "POLL_INTERVAL": 0.2, "THROUGHPUT": {"*": None, "sns": 3000}}
    settings.SALON_JOBS = {**settings.SALON_JOBS, "OUTBOX": outbox}
    monkeypatch.setattr("salon_jobs.outbox.publishers.make_publisher", lambda _service, using: broker.publisher())
    monkeypatch.setattr("salon_jobs.brokers.aws.client.AGAIN_S", 0.2)


def emit_round(destination: str, number: int) -> None:
    for aggregate_id in AGGREGATES:
        body = json.dumps({"number": number})
        change(
            "SELECT salon_jobs_emit(%s, %s, 'order.created', %s::json, producer => 'contract-tests')",
            destination,
            aggregate_id,
            body,
        )


def statuses(destination: str) -> dict[str, int]:
    counted = "SELECT status, count(*) FROM salon_jobs_message WHERE aggregate_type = %s GROUP BY 1"
    return dict(seen(counted, destination))


def outage_of(destination: str) -> list[tuple[Any, ...]]:
    return seen("SELECT outage_code <> '' FROM salon_jobs_destination WHERE aggregate_type = %s", destination)


def arrived(broker: Broker, destination: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for envelope in broker.received(destination):
        found.setdefault(envelope.aggregate_id, []).append(json.loads(envelope.payload)["number"])
    return found if broker.keeps_order else {aggregate: sorted(numbers) for aggregate, numbers in found.items()}


def test_a_missing_destination_holds_up_none_beside_it_costs_no_try_and_warns_once(
    broker: Broker, destination: str, relay_of: None, caplog: pytest.LogCaptureFixture
) -> None:
    prefix, _, resource = destination.rpartition(":")
    missing = f"{prefix}:missing-{resource}"

    def warnings() -> list[Any]:
        records: list[Any] = caplog.records
        return [r.event_fields for r in records if getattr(r, "event", "") == "destination_unresolvable"]

    with relaying() as relay:
        emit_round(missing, 0)
        eventually(lambda: outage_of(missing), [(True,)])
        for number in range(3):
            emit_round(destination, number)
        emit_round(missing, 1)
        eventually(lambda: statuses(destination), {"published": 12})
        assert statuses(missing) == {"pending": 8}
        # It was tried again meanwhile, or is: each time one message, and nothing is written for it.
        eventually(lambda: relay.facts()["destinations"][missing]["in_memory"], 8)
        assert seen("SELECT count(*) FROM salon_jobs_blocked_aggregate") == [(0,)]
        assert outage_of(destination) == [(False,)]
        assert [fields["aggregate_type"] for fields in warnings()] == [missing]

        assert (
            broker.destination(f"missing-{resource}".removesuffix(".fifo")).rpartition(":")[2] == f"missing-{resource}"
        )
        eventually(lambda: statuses(missing), {"published": 8})
        eventually(lambda: outage_of(missing), [(False,)])
    assert arrived(broker, destination) == {aggregate_id: [0, 1, 2] for aggregate_id in AGGREGATES}
    assert arrived(broker, missing) == {aggregate_id: [0, 1] for aggregate_id in AGGREGATES}
    assert len(warnings()) == 1
    assert seen("SELECT max(retry_count) FROM salon_jobs_message") == [(0,)]
