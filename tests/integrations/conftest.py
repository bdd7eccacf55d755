"""The outbox's fixtures, since messages are traced and reported too, and a client of Sentry."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from tests.outbox.conftest import change_settings, outbox

__all__ = ["change_settings", "outbox"]  # fixtures


class Sent:
    """Keeps what would be sent to Sentry, by kind."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the items of one kind: event, check_in."""
        return [payload for found, payload in self.items if found == kind]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.of("event")

    @property
    def check_ins(self) -> list[str]:
        """The statuses of the check-ins."""
        return [each["status"] for each in self.of("check_in")]

    @property
    def text(self) -> str:
        return json.dumps(self.items, default=str)


@pytest.fixture
def sent() -> Iterator[Sent]:
    """Initialise the SDK as the demo's settings do, but for local variables, and keep what it would send."""
    kept = Sent()

    class Keep(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            kept.items += ((item.type or "", json.loads(item.get_bytes())) for item in envelope.items)

    sentry_sdk.init(
        dsn="http://key@127.0.0.1:9/1",
        transport=Keep(),
        auto_enabling_integrations=False,
        integrations=[DjangoIntegration(), LoggingIntegration(event_level=logging.WARNING)],
        release="salon@1.2",
        environment="prod",
        include_local_variables=True,
    )
    yield kept
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)
