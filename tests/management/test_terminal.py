"""Puts what commands a terminal into every text that jobs, messages and consumers keep, and reads it by the command."""

from __future__ import annotations

import json

from tests.management.operator import add, run
from tests.management.test_salon_jobs_command import minute
from tests.outbox.test_operate_messages import ORDERS, block, write
from tests.support import change, seen

# Clears the screen; the same begun by one byte of eight bits; writes from right to left.
EVIL = "\x1b[2J\x9b2J\u202e"


def test_no_command_lets_what_it_shows_command_the_terminal(database: None) -> None:
    job = add(task=f"t{EVIL}", queue=f"q{EVIL}", state="failed", reason=EVIL, payload=json.dumps({EVIL: f"予約{EVIL}"}))
    change(
        "INSERT INTO salon_jobs_job_error (job_id, attempt, error_class, message, traceback)"
        " VALUES (%s, 1, %s, %s, %s)",
        job,
        EVIL,
        EVIL,
        f"first\n  second{EVIL}",
    )
    change("INSERT INTO salon_jobs_limit (kind, name, paused) VALUES ('queue', %s, true)", f"q{EVIL}")
    minute(f"t{EVIL}", 1, failed=1)
    message = write("failed", aggregate=f"a{EVIL}")
    change("UPDATE salon_jobs_message SET last_error = %s", f"said{EVIL}")
    block(message, "parked")
    [(inbox,)] = seen(
        "INSERT INTO salon_jobs_inbox (consumer, message_id, event, producer, status, code, reason, raw)"
        " VALUES ('c', %s, %s, %s, 'rejected', 'C', %s, %s) RETURNING id",
        f"m{EVIL}",
        EVIL,
        EVIL,
        EVIL,
        f"first\nsecond{EVIL}",
    )
    commands = (
        ("list",),
        ("show", str(job)),
        ("top",),
        ("stats",),
        ("limit",),
        ("inbox",),
        ("inbox", "show", str(inbox)),
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
