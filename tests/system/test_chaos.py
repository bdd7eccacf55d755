"""The short chaos: every disturbance once, and every job and message examined."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from project.settings import INHERITED_ENVIRONMENT
from tests.interpreter import run_command

# It needs no system package: it takes a minute or two and both cores.
pytestmark = pytest.mark.system


def chaos(module: str, path: Path) -> dict[str, Any]:
    """Run it for a minute or until every disturbance was applied; return its figures."""
    words = (sys.executable, "-m", module, "--seconds", "60", "--seed", "1", "--json", str(path))
    done = run_command(*words, environment=INHERITED_ENVIRONMENT, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads(path.read_text())
    return figures


def test_jobs_survive_chaos(tmp_path: Path) -> None:
    """None is lost or done twice."""
    tallies = chaos("tests.chaos", tmp_path / "chaos.json")["disturbances"]
    assert len(tallies) == 7
    for tally in tallies.values():
        assert tally["times"] >= 1
        assert tally["jobs"] > 0
        assert tally["effects"] > tally["ticks"] > 0
        assert tally["violations"] == []


def test_messages_survive_chaos(tmp_path: Path) -> None:
    """Each arrives once and in order."""
    figures = chaos("tests.chaos.outbox", tmp_path / "chaos.json")
    assert len(figures["disturbances"]) == 8
    assert figures["messages"] > 1000
    assert figures["faults"] == []
