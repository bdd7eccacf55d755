"""Tells what a run ran on: the machine, and the versions of everything that was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import PEERS, node
from benchmarks.processes import ROOT

_OURS = ("django", "psycopg", "msgspec")


def machine() -> dict[str, object]:
    """Return the processor, its cores, the memory, the kernel, and how loaded it is as the run begins."""
    load, _, _ = os.getloadavg()
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _first("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load_at_start": load,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, our packages, Node and the peers, and the commit."""
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in _OURS},
        "node": _said(node(), "--version"),
        **{peer.name: peer.version for peer in PEERS},
        "commit": _said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
    }


def _first(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
