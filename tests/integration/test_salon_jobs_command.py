"""Runs ``manage.py salon_jobs`` as operators do."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command


def test_without_a_subcommand_it_shows_what_there_is() -> None:
    out = StringIO()
    call_command("salon_jobs", stdout=out)
    assert "See and change the jobs of all stores" in out.getvalue()
    assert "SUBCOMMAND" in out.getvalue()


def test_an_unknown_subcommand_is_refused() -> None:
    with pytest.raises(CommandError, match="invalid choice: 'no-such-thing'"):
        call_command("salon_jobs", "no-such-thing")
