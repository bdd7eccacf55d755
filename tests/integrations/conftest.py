"""The outbox's fixtures, since messages are traced and reported too, and a client of Sentry."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.outbox.conftest import change_settings, outbox

__all__ = ["change_settings", "outbox", "sentry_client"]


@contextmanager
def sentry_client(keep: Callable[[str, Any], object], **options: Any) -> Generator[None]:
    """Initialise the SDK as a project would; ``keep`` gets the type and payload of what it would send."""

    class Keep(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            for item in envelope.items:
                keep(item.type or "", json.loads(item.get_bytes()))

    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=Keep(), auto_enabling_integrations=False, **options)
    yield
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)
