"""Parses the options that the long-running commands share."""

from __future__ import annotations

import pytest
from django.core.management.base import CommandError, CommandParser

from salon_jobs.management.commands.relay_outbox import Command


def level(given: str) -> object:
    """Return what is read of ``--log-level``."""
    parser = CommandParser(called_from_command_line=False)
    Command().add_arguments(parser)
    return parser.parse_args(["--log-level", given]).log_level


@pytest.mark.parametrize("given", ["warn", "WARN", "warning", "WARNING"])
def test_a_level_is_spelled_as_in_the_settings(given: str) -> None:
    assert level(given) == "WARNING"


def test_another_word_is_refused_with_those_that_are() -> None:
    with pytest.raises(CommandError, match="--log-level: must be debug, info, warning, error or critical, not 'loud'"):
        level("loud")
