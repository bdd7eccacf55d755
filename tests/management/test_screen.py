"""Shows the operator's commands on a terminal of 80 columns, and where colours or control characters are not wanted."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import termios
from io import StringIO
from uuid import UUID, uuid4

import pytest
from rich.cells import cell_len
from rich.text import Text

from salon_jobs.jobs import limits
from salon_jobs.management.output import Listing, screen_of
from tests.interpreter import start_python
from tests.management.operator import add, insert, minute, run
from tests.outbox.rows import ORDERS, block, write
from tests.support import change
from tests.waiting import LIMIT_S

COLOUR = re.compile(r"\x1b\[\d+m")


def all_on_terminal(*subcommands: str) -> list[str]:
    """Run several subcommands on a terminal of 80 columns, in one process."""
    program = (
        "from django.core.management import call_command\n"
        f"for subcommand in {subcommands!r}:\n"
        "    print('~~~')\n"
        "    call_command('salon_jobs', *subcommand.split())\n"
    )
    return on_terminal("manage.py", "shell", "--no-imports", "-c", program).split("~~~\n")[1:]


def on_terminal(*words: str, **environment: str) -> str:
    """Run a program on a terminal of 80 columns; return what it shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    settings = {"DJANGO_SETTINGS_MODULE": "project.settings", "TERM": "xterm"}
    surroundings = {**inherited, **settings, **environment}
    process = start_python(*words, environment=surroundings, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError:  # closed by the command
        os.close(ours)
    assert process.wait(LIMIT_S) == 0, text.decode()
    return text.decode().replace("\r\n", "\n")


def fill(process_id: int, store: UUID) -> int:
    """Add jobs in all states, with long and wide names; return the ID of the one that failed."""
    for name, state, columns in (
        ("expire-tentative-reservations-for-store", "queued", {"queue": "mail", "store_id": store}),
        ("予約確認メールをお客様へ送信するタスク", "running", {"leased_by": process_id, "lease": 1}),
        ("ping", "succeeded", {}),
    ):
        add(task=name, state=state, **columns)
    failed = add(
        task="charge-card", state="failed", attempts=3, max_attempts=3, error_class="a.CardError", fingerprint=7
    )
    change("UPDATE salon_jobs_job SET started_at = now() - interval '3 minutes' WHERE state = 'running'")
    change("UPDATE salon_jobs_job SET finished_at = now() - interval '2 hours' WHERE state IN ('failed', 'succeeded')")
    for attempt in (1, 2, 3):
        said = f"カード会社が注文{attempt}のお支払いを拒否しました。お客様に連絡してから、もう一度お試しください。"
        told = {"error_class": "a.CardError", "message": said * 2, "traceback": "Traceback"}
        insert("job_error", job_id=failed, attempt=attempt, **told)
    insert("limit", kind="queue", name="mail", paused=True)
    return failed


@pytest.mark.process
def test_tables_fit_eighty_columns(process_id: int, stores: list[UUID]) -> None:
    fill(process_id, stores[0])
    minute("expire-tentative-reservations-for-store", 1, succeeded=1_000, failed=20)
    head = write("failed", aggregate=str(uuid4()), kind="arn:aws:sns:ap-northeast-1:123456789012:reservations")
    block(head, "parked")
    change("UPDATE salon_jobs_message SET last_error = %s", "SNS.FAILED " + "too large " * 20)
    rejected = {"event": "reservation.confirmed", "status": "rejected", "code": "ENVELOPE.INVALID"}
    insert("inbox", consumer="confirmations", message_id=str(uuid4()), reason="no event", **rejected)
    limits.pause(store_id=stores[0], by="dana")
    entry = "cleanup-expired-operator-invitations"
    whole = {
        "inbox": "reservation.confirmed · ENVELOPE.INVALID · no event",
        "limit": "    Salon 0; paused by dana since",
        "messages list": "    made · ",
        "cron list": f"\n{entry} ",
    }
    commands = (*whole, "list", "stats", "messages parked", "top --once")
    for command, shown in zip(commands, all_on_terminal(*commands), strict=True):
        assert COLOUR.search(shown), command
        lines = COLOUR.sub("", shown).splitlines()
        assert max(map(cell_len, lines)) <= 80, shown
        assert "+00:00" not in shown
        assert "None" not in shown
        assert whole.get(command, "") in "\n".join(lines)


@pytest.mark.process
def test_note_is_not_coloured_as_error(database: None) -> None:
    add(state="failed")
    add(state="failed")
    [shown] = all_on_terminal("list --limit 1")
    assert "\nonly the first is listed; --limit lists more" in shown
    assert "\x1b[31;1m" not in shown


@pytest.mark.process
def test_progress_is_a_bar_on_a_terminal(database: None) -> None:
    add(state="failed", finished_at="2020-01-01")
    shown = on_terminal("manage.py", "salon_jobs", "prune", "--yes")
    assert re.search(r"━.* 1 of 1 deleted 0:\d\d:\d\d", COLOUR.sub("", shown))
    assert shown.endswith("deleted: 0 succeeded, 0 cancelled, 1 failed, 0 errors\n")


@pytest.mark.process
def test_list_show_and_top_give_reasons_early(process_id: int, stores: list[UUID]) -> None:
    failed_id = fill(process_id, stores[0])
    commands = ("list", f"show {failed_id}", "top --once")
    listed, shown, top = (COLOUR.sub("", text) for text in all_on_terminal(*commands))
    head, failed, error, message, more, succeeded, running, queued, *waiting = listed.splitlines()
    assert head.split() == ["id", "task", "state", "when", "attempts"], "queue and store are below"
    assert failed.split() == [str(failed_id), "charge-card", "failed", "2", "h", "ago", "3/3"]
    assert error.rstrip() == "    CardError:"
    assert message.startswith("    カード会社が注文3のお支払い")
    assert more.startswith("    ")
    assert more.endswith("…")
    assert "2 h ago" in succeeded
    assert re.search(r"for 3(\.\d)? min", running)
    assert "expire-tentative-reservations-for-store" in queued
    whole = " ".join(map(str.strip, waiting))
    assert whole.startswith("mail · Salon 0 · waiting: no task 'expire-tentative-reservations-for-store' is declared")
    assert "queue mail is paused" in whole

    outcome = "outcome: failed with an error that is not retried"
    assert shown.splitlines()[:3] == [f"job {failed_id} charge-card failed", outcome, "error: CardError"]
    assert shown.index("attempt 3 failed at") < shown.index("attempt 2 failed at") < shown.index("attempt 1 failed at")
    assert "3 of 3" in shown
    assert "2 h ago" in shown
    for internal in ("fingerprint", "lease", "claim_group", "trace:", "retries_ahead", "None", "+00:00"):
        assert internal not in shown, internal

    lines = top.splitlines()
    [place] = [number for number, line in enumerate(lines) if line.startswith("failed jobs")]
    assert place < 12, "three problems take two lines each"
    assert "CardError" in lines[place + 1]


@pytest.mark.process
@pytest.mark.parametrize(
    ("option", "environment", "coloured"),
    [
        ([], {"NO_COLOR": "1"}, False),
        ([], {"TERM": "dumb"}, False),
        ([], {"DJANGO_COLORS": "nocolor"}, False),
        (["--no-color"], {}, False),
        (["--force-color"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colours_can_be_switched_off(
    database: None, option: list[str], environment: dict[str, str], coloured: bool
) -> None:
    add(state="failed")
    shown = on_terminal("manage.py", "salon_jobs", *option, "list", **environment)
    assert bool(COLOUR.search(shown)) is coloured


def test_file_gets_full_lines(process_id: int, stores: list[UUID]) -> None:
    fill(process_id, stores[0])
    head, failed, *rest = run("list")[0].splitlines()
    assert head.split()[-1] == "why"
    assert len(rest) == 3
    assert failed.endswith("もう一度お試しください。")
    assert "\x1b" not in failed


def laid_out(width: int, *rows: tuple[object, ...], **options: bool) -> list[str]:
    """Return the lines of a table on a screen of this width."""
    screen = screen_of(StringIO(), options)
    screen.width = width
    with screen.capture() as captured:
        screen.print(Listing(rows), crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_table_aligns_text_and_numbers() -> None:
    """Wide characters count twice, and long texts are folded."""
    lines = laid_out(30, ("id", "task"), ("7", "予約"), ("1,002", Text("x", "red")), (None, "a" * 40))
    assert lines == ["   id  task", "    7  予約", "1,002  x", f"    -  {'a' * 23}", f"       {'a' * 17}"]
    assert laid_out(30, ("n",), (Text("x", "red"),), force_color=True)[1] == "\x1b[31mx\x1b[0m"


def test_numbers_are_never_cut() -> None:
    """On a screen that is too narrow for them lines are longer."""
    rows = [("task", "first", "second"), ("t" * 30, "123,456,789,012", "987,654,321,098")]
    assert laid_out(20, *rows)[1] == f"{'t' * 12}  123,456,789,012  987,654,321,098"


def test_text_is_no_markup() -> None:
    shown = ("[bold]task[/bold]", ":smile:", "[link=https://a.example]x[/link]")
    assert [line.split() for line in laid_out(90, shown, shown)] == [[*shown], [*shown]]


# Clears the screen; the same begun by one byte of eight bits; writes from right to left.
EVIL = "\x1b[2J\x9b2J\u202e"


def test_output_cannot_command_terminal(database: None) -> None:
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
    commands = ("list", f"show {job}", "top", "stats", "limit", "inbox", "inbox show 5", "messages list")
    parked = (f"messages show {message}", "messages parked", f"messages unpark --aggregate-type {ORDERS} --yes")
    for command in (*commands, *parked):
        for as_json in ("", *["--json"] * (command != "top")):
            text = "".join(run(*command.split(), *as_json.split())).replace("\n", "")
            assert text.isprintable(), (command, as_json)
    assert "予約" in run("show", str(job))[0], "what people write is left"
    assert "first\n  second" in run("show", str(job))[0]


def test_remedies_are_folded_not_cut(process_id: int) -> None:
    """On a narrow terminal, too, a remedy can be read to its end."""
    add(queue="night", run_at="yesterday")
    [shown] = all_on_terminal("top --once")
    problems = COLOUR.sub("", shown.split("\n\n")[0])
    assert max(map(len, problems.splitlines())) <= 80
    assert "python manage.py salon_jobs list --queue night --state queued" in " ".join(problems.split())
