"""Puts what commands a terminal into every text that jobs, messages and consumers keep, and reads it by the command."""

from __future__ import annotations

import json

from tests.management.operator import add, insert, run
from tests.management.test_salon_jobs_command import minute
from tests.outbox.test_operate_messages import ORDERS, block, write
from tests.support import change

# Clears the screen; the same begun by one byte of eight bits; writes from right to left.
EVIL = "\x1b[2J\x9b2J\u202e"


def test_no_command_lets_what_it_shows_command_the_terminal(database: None) -> None:
    job = add(task=f"t{EVIL}", queue=f"q{EVIL}", state="failed", reason=EVIL, payload=json.dumps({EVIL: f"予約{EVIL}"}))
    told = {"error_class": EVIL, "message": EVIL, "traceback": f"first\n  second{EVIL}"}
    insert("job_error", job_id=job, attempt=1, **told)
    insert("limit", kind="queue", name=f"q{EVIL}", paused=True)
    minute(f"t{EVIL}", 1, failed=1)
    message = write("failed", aggregate=f"a{EVIL}")
    change("UPDATE salon_jobs_message SET last_error = %s", f"said{EVIL}")
    block(message, "parked")
    received = {"message_id": f"m{EVIL}", "event": EVIL, "producer": EVIL, "raw": f"first\nsecond{EVIL}"}
    insert("inbox", id=5, consumer="c", status="rejected", code="C", reason=EVIL, **received)
    commands = (
        ("list",),
        ("show", str(job)),
        ("top",),
        ("stats",),
        ("limit",),
        ("inbox",),
        ("inbox", "show", "5"),
        ("messages", "list"),
        ("messages", "show", str(message)),
        ("messages", "parked"),
        ("messages", "unpark", "--aggregate-type", ORDERS, "--yes"),
    )
    for command in commands:
        as_json = () if command == ("top",) else ("--json",)
        for arguments in (command, (*command, *as_json)):
            text = "".join(run(*arguments)).replace("\n", "")
            assert text.isprintable(), arguments
    assert "予約" in run("show", str(job))[0], "what people write is left"
    assert "first\n  second" in run("show", str(job))[0]
