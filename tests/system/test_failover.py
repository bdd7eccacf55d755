"""Every failover once: a real primary, its standby, and all that a deployment runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from project.settings import INHERITED_ENVIRONMENT
from tests.interpreter import run_command

# It needs no system package: it takes a minute or two and both cores.
pytestmark = pytest.mark.system


def test_failovers_lose_only_unreplicated_writes(tmp_path: Path) -> None:
    path = tmp_path / "failover.json"
    words = (sys.executable, "-m", "tests.chaos.failover", "--seconds", "1", "--seed", "1", "--json", str(path))
    # As `make chaos-failover` runs it: the program itself has no settings.
    environment = {name: value for name, value in INHERITED_ENVIRONMENT.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = run_command(*words, environment=environment, timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    scenes = json.loads(path.read_text())["scenes"]
    assert len(scenes) == 12
    assert scenes["sync, killed with a process"]["cut_short"] > 0
    for name, verdict in scenes.items():
        assert verdict["faults"] == []
        assert verdict["acknowledged"] > 0
        assert verdict["messages"] > 0
        assert verdict["starts"] > 0
        assert (verdict["lost"] > 0) == name.startswith("async")
        if name.startswith("async") and "frozen" not in name:
            assert verdict["reused"] > 0
    # A scene may be over before its job of this kind has run.
    assert sum(verdict["once"] for verdict in scenes.values()) > 0
