"""Reads SALON_JOBS["OUTBOX"]: the specified defaults, and rates of single destinations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from salon_jobs.conf import settings
from salon_jobs.core.errors import ConfigurationError

TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
SNS = {"REGION": "eu-west-1"}


def read(*, sns: dict[str, Any] | None = None, **given: Any) -> Any:
    with override_settings(SALON_JOBS={"OUTBOX": given, "SNS": sns or {}}):
        return settings.outbox


def test_the_defaults_are_those_of_the_specification() -> None:
    outbox = read()
    assert (outbox.poll_interval, outbox.retry_backoff) == (timedelta(seconds=5), timedelta(seconds=20))
    assert (outbox.retry_count, outbox.throughput, outbox.fetch_limit) == (10, {"*": 3000}, 1000)
    assert outbox.producer is None


def test_a_destination_has_its_own_rate_before_its_services_before_all() -> None:
    outbox = read(THROUGHPUT={"*": 7, "nats": None, "rn::nats:::slow": 1})
    assert outbox.rate_of("rn::nats:::slow") == 1
    assert outbox.rate_of("rn::nats:::orders") is None
    assert outbox.rate_of("arn:aws:sns:eu-west-1:123456789012:orders") == 7


@pytest.mark.parametrize("wrong", [0, ["nats"], "7"])
def test_rates_that_are_none_are_refused(wrong: Any) -> None:
    message = r"\['THROUGHPUT'\] must be a whole number from 1 to 10000000, or None, or a dict of services"
    with pytest.raises(ConfigurationError, match=message):
        read(THROUGHPUT=wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"nats": 1, "SNS": 3001}, r"\['SNS'\]: the key must be .*lower case"),
        ({"nats": 0}, r"\['nats'\] must be a whole number"),
        ({5: 5}, r"\[5\]: the key must be"),
        ({"orders": "many"}, r"\['orders'\] must be a whole number from 1 to 10000000, or None, not 'many'"),
        ({"rn:nats": 5}, r"\['rn:nats'\]: the key must be"),
    ],
)
def test_a_wrong_rate_is_named(wrong: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\['OUTBOX'\]\['THROUGHPUT'\]" + named):
        read(THROUGHPUT=wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"THROUGHPUT": {"sns": 3001}}, r"\['THROUGHPUT'\]\['sns'\] must be at most 3000.* not 3001"),
        ({"THROUGHPUT": {"sns": None}}, r"\['THROUGHPUT'\]\['sns'\] must be at most 3000.* not None"),
        ({"THROUGHPUT": {"nats": None, TOPIC: 10_000}}, rf"\['THROUGHPUT'\]\['{TOPIC}'\] must be at most 3000"),
        ({"THROUGHPUT": {"rn::sns:::a": None}}, r"\['THROUGHPUT'\]\['rn::sns:::a'\] must be at most 3000"),
        ({"THROUGHPUT": 3001, "sns": SNS}, r"\['THROUGHPUT'\] is 3001.*write {'\*': 3001, 'sns': 3000}, or less"),
        ({"THROUGHPUT": None, "sns": SNS}, r"\['THROUGHPUT'\] is None.*write {'\*': None, 'sns': 3000}, or less"),
        # One topic has a rate; the others of SNS would have none.
        ({"THROUGHPUT": {"*": None, TOPIC: 10}}, r"\['THROUGHPUT'\] is None"),
    ],
)
def test_more_than_sns_takes_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"SALON_JOBS\['OUTBOX'\]{named}"):
        read(**wrong)


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ({}, (3000, 3000)),
        ({"THROUGHPUT": 50, "sns": SNS}, (50, 50)),
        ({"THROUGHPUT": None}, (None, 3000)),
        ({"THROUGHPUT": 9000}, (9000, 3000)),
        ({"THROUGHPUT": {"*": None, "sns": 3000}, "sns": SNS}, (None, 3000)),
        ({"THROUGHPUT": {"*": None, "sns": 3000, TOPIC: 10}}, (None, 10)),
        ({"THROUGHPUT": {"nats": None}, "sns": SNS}, (None, 3000)),
    ],
)
def test_other_services_lift_the_rate_and_sns_never_has_more(
    given: dict[str, Any], rates: tuple[int | None, int]
) -> None:
    outbox = read(**given)
    assert (outbox.rate_of("rn::nats:::orders"), outbox.rate_of(TOPIC)) == rates
