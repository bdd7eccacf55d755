"""Reads SALON_JOBS["OUTBOX"]: the specified defaults, and rates of single destinations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from salon_jobs.conf import settings
from salon_jobs.core.errors import ConfigurationError


def read(**given: Any) -> Any:
    with override_settings(SALON_JOBS={"OUTBOX": given}):
        return settings.outbox


def test_the_defaults_are_those_of_the_specification() -> None:
    outbox = read()
    assert (outbox.poll_interval, outbox.retry_backoff) == (timedelta(seconds=5), timedelta(seconds=20))
    assert (outbox.retry_count, outbox.throughput, outbox.fetch_limit) == (10, 3000, 1000)
    assert (outbox.producer, outbox.throughput_of) == (None, {})


def test_a_destination_has_its_own_rate_before_its_services_before_all() -> None:
    outbox = read(THROUGHPUT=7, THROUGHPUT_OF={"nats": None, "rn::nats:::slow": 1})
    assert outbox.rate_of("rn::nats:::slow") == 1
    assert outbox.rate_of("rn::nats:::orders") is None
    assert outbox.rate_of("arn:aws:sns:eu-west-1:123456789012:orders") == 7


@pytest.mark.parametrize("wrong", [5, ["nats"], {"nats": 0}, {"nats": "many"}, {"NATS": 5}, {"rn:nats": 5}, {5: 5}])
def test_rates_that_are_none_are_refused(wrong: Any) -> None:
    message = r"\['OUTBOX'\]\['THROUGHPUT_OF'\] must be a dict of services such as 'nats', or ARNs and RNs, to whole"
    with pytest.raises(ConfigurationError, match=message):
        read(THROUGHPUT_OF=wrong)
