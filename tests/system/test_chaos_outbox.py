"""Runs the short chaos of the outbox: every disturbance once; the stream is what committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import ROOT
from project.settings import INHERITED_ENVIRONMENT

# It needs no system package: it takes a minute or two and both cores.
pytestmark = pytest.mark.system


def test_every_message_arrives_once_and_in_order_whatever_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.outbox", "--seconds", "60", "--seed", "1", "--json", str(path)],
        cwd=ROOT,
        env=INHERITED_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(path.read_text())
    assert len(figures["disturbances"]) == 8
    assert figures["messages"] > 1000
    assert figures["faults"] == []
