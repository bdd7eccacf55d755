"""What docker/compose.yaml says, and the port on which each process reports its health."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
RUNTIMES = {"worker": 8080, "scheduler": 8081, "relay": 8082, "consumer": 8083}
