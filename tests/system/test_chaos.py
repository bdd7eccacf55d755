"""Runs the short chaos: every disturbance once, and after each one every job is looked at."""

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


def test_no_job_is_lost_or_done_twice_whatever_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "chaos.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seconds", "60", "--seed", "1", "--json", str(path)],
        cwd=ROOT,
        env=INHERITED_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tallies = json.loads(path.read_text())["disturbances"]
    assert len(tallies) == 7
    for tally in tallies.values():
        assert tally["times"] >= 1
        assert tally["jobs"] > 0
        assert tally["violations"] == []
