"""The outbox's fixtures: messages are traced and reported too."""

from tests.outbox.conftest import change_settings, outbox

__all__ = ["change_settings", "outbox"]
