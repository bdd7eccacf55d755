"""Shows what holds all messages back: ``salon_jobs messages gate``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser, OutputWrapper

from salon_jobs.conf import settings as conf
from salon_jobs.management.subcommands.base import Subcommand
from salon_jobs.management.table import table
from salon_jobs.outbox.gate_holders import COUNTED, GateHolder, gate_state


class Gate(Subcommand):
    """Shows the open transactions that wrote messages, and how many messages wait for them to end."""

    name = "gate"
    help = "Show the open transactions behind which messages wait, since when, and how many."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="write an object")

    def run(self, options: dict[str, Any], out: OutputWrapper, err: OutputWrapper) -> None:
        """Write a table, or JSON."""
        state = gate_state(using=conf.reader_database)
        if options["json"]:
            out.write(json.dumps(asdict(state), indent=2, default=str))
            return
        if not state.holders:
            out.write(f"nobody holds the gate; messages are relayed up to {state.bound}")
            return
        out.write(table([("pid", "role", "application", "since", "state"), *map(_cells, state.holders)]))
        behind = f"{state.behind:,} or more" if state.behind == COUNTED else f"{state.behind:,}"
        out.write(f"messages are relayed up to {state.bound}; committed and waiting behind that: {behind}")


def _cells(holder: GateHolder) -> tuple[object, ...]:
    pid = holder.pid or "prepared transaction"
    return (pid, holder.role, holder.application, holder.since or "not visible", holder.state)
