"""Every page in a language of its own, made at run time, has every word that the pages say themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client
from django.utils.functional import Promise
from django.utils.translation.trans_real import DjangoTranslation

import salon_jobs
from salon_jobs import cron, flow, schedule, task, tenant_context
from salon_jobs.jobs import registry
from salon_jobs.schedules.entries import cron_entries
from tests import tasks
from tests.admin.pages import ADMIN, Rows, count_runs, form, staff
from tests.management.operator import add, insert, run
from tests.outbox.rows import ORDERS, block, write
from tests.support import change, seen

# What is left as it is: placeholders, markup, and what follows the mark of a context.
_KEPT = re.compile(r"(%\(\w+\)[sd]|%[sd%]|\{[^}]*\}|<[^>]*>|&\w+;)")
_OTHERS = {ord(letter): ord(letter) + 0xFEE0 for letter in map(chr, range(65, 123)) if letter.isalpha()}
# Names in the rows below, of the project's tasks, and times: no words of ours.
_DATA = re.compile(
    r"(?i:zz)[\w:./-]*|test-[\w-]+|Salon \d|#\d+|user [0-9a-f-]{36}|[0-9a-f]{8}-[0-9a-f-]{27}|rn::nats:::[\w-]+"
    r"|[\d-]{10} [\d:]{5,8} UTC|\d\d:\d\d(:\d\d)? UTC|UTC|Europe/Berlin|\b(key|aggregate)-of-\d|\bmade\b"
    r"|\b\w+=(\"[^\"]*\"|\d+)"
    r"|(^|- |› )(queue|task|store|key) |tests\.[\w.<>]+|\b[a-z]+(-[a-z]+){2,}"
)
# What stays in English: codes, messages of errors, and names of programs, settings and kinds of processes.
_NAMES = re.compile(
    r"\S*\(\*?[a-z_]+: .*\)$|\b(p50|p95|EAGER|JSON|ID|UUID|pid|worker|scheduler|default|ping)\b"
    r"|attempts_exhausted|process_died|salon_jobs\.\w+"
    r"|store_id must be a UUID, not .*"
    r"|cron line '' has 1 fields; write five: .*|no cron entry .*|(?<=ｆｉｅｌｄ) shown|python manage\.py \w+"
)


_SURE = {"confirmed": "1", "store": ""}


@cache
def other(message: str) -> str:
    """Translate a text into letters of twice the width, which no data below have."""
    parts = _KEPT.split(message.rpartition("\x04")[2])
    return "".join(part if place % 2 else part.translate(_OTHERS) for place, part in enumerate(parts))


@pytest.fixture
def translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DjangoTranslation, "gettext", lambda _, message: other(message))
    monkeypatch.setattr(DjangoTranslation, "ngettext", lambda _, one, many, n: other(one if n == 1 else many))


class Said(HTMLParser):
    """The texts of a page that people read or hear, but for what is code or typed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("input", "br", "link", "meta", "img", "wbr", "hr", "path", "rect", "use"):
            self._inside.append("pre" if "salon-jobs-text" in (given.get("class") or "") else tag)
        is_button = tag == "input" and given.get("type") == "submit"
        names = ["title", "aria-label", "placeholder", *(["value"] if is_button else [])]
        self.texts += [text for name in names if (text := given.get(name))]

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() not in (tag, "pre"):
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style", "textarea", "code", "pre"} & {*self._inside} and data.strip():
            self.texts.append(" ".join(data.split()))


def untranslated(client: Client, page: str, sent: dict[str, Any] | None = None) -> dict[str, str]:
    answer = client.get(page, follow=True) if sent is None else client.post(page, sent)
    content = answer.content.decode().partition("</head>")[2]
    declared = sorted([*registry.queue_names(), *registry.task_names()], key=len, reverse=True)
    names = re.compile(rf"\b({'|'.join(map(re.escape, declared))})\b")
    left = {text: _NAMES.sub("", names.sub("", _DATA.sub("", text))) for text in Said(content).texts}
    return {text: page for text, rest in left.items() if re.search(r"[A-Za-z]{2}", rest)}


@pytest.fixture
def rows(two: tuple[Rows, Rows], translated: None) -> Iterator[UUID]:
    """Have rows of every kind, in every state, and return a store."""
    own, now, hour = two[0].store, datetime.now(UTC), timedelta(hours=1)

    @task(name="zz-nightly")
    def nightly() -> None: ...

    cron("30 3 * * *", nightly, timezone="Europe/Berlin")
    cron("30 3 * * *", nightly, name="zz-broken")
    insert("cron_entry", name="zz-nightly", paused_at=now, paused_by="zz-ann", line="0 4 * * *", overridden_by="zz-ann")
    insert("cron_entry", name="zz-broken", line="zz", overridden_by="zz-ann", overridden_at=now)
    insert("cron_entry", name="zz-gone")
    for number, (kind, queues) in enumerate((("worker", '["zz-queue"]'), ("worker", None), ("scheduler", None)), 70):
        beat = now - hour * 24 * (kind == "scheduler")
        insert("process", id=number, kind=kind, hostname="zz", pid=7, queues=queues, heartbeat_at=beat)
    change("UPDATE salon_jobs_job SET fingerprint = -7, error_class = 'zz.ZzError', reason = 'attempts_exhausted'")
    add(task="zz-task", queue="zz-late", run_at=now + hour)
    add(task="zz-nightly", run_at=now + hour, attempts=1, max_attempts=9)
    add(task="zz-nightly", state="running", leased_by=70)
    add(task="zz-nightly", state="running", leased_by=70, cancel_requested_at=now)
    add(task="zz-nightly", state="cancelled", reason="discarded: by an operator", expires_at=now)
    add(task="zz-nightly", state="cancelled", reason="superseded")
    add(task="zz-nightly", state="succeeded", claimed_at=now - hour, log="zz\n" * 50, tick=now, fan_out_id=77)
    failed = [
        add(task="zz-nightly", state="failed", reason=why, attempts=3, max_attempts=3, rescues=2, fingerprint=-7)
        for why in ("process_died", "not_retried", "timed_out")
    ]
    for number, job in enumerate(failed * 2):
        first = number // 3
        times = {"started_at": now - hour * (5 - first), "occurred_at": now - hour * (4 - first)}
        told = {"error_class": "zz.ZzError", "message": "zz", "log": "zz"}
        insert("job_error", job_id=job, attempt=1 + first, worker_id=70 + 5 * first, **told, **times)
    change(
        "INSERT INTO salon_jobs_fan_out (id, task, digest, inserted, kept, paused) OVERRIDING SYSTEM VALUE"
        " VALUES (77, 'zz-nightly', '', 9, 2, 1)"
    )
    insert("cron_tick", entry="zz-nightly", tick_at=now, job_id=failed[0])
    insert("cron_tick", entry="zz-nightly", tick_at=now - hour, outcome="succeeded")
    insert("cron_tick", entry="zz-nightly", tick_at=now - 2 * hour)
    with flow("zz-flow") as steps:
        begun = [steps.add(tasks.system.call()) for _ in range(3)]
        steps.add(tasks.in_flow.call(), after=steps.add(tasks.system.call(), after=begun, when="ended"), when="failed")
    for number in range(3):
        tasks.ordered.enqueue(number=number)
    for kind, name in (("queue", "default"), ("task", "zz-nightly"), ("store", str(own)), ("key", "zz-nightly:zz")):
        paused = {"paused": kind == "store", "paused_by": "zz-ann", "paused_at": now}
        insert("limit", kind=kind, name=name, **paused, max_concurrency=1, rate=0.5, burst=1)
    with tenant_context(own):
        call = tasks.in_store.call(store_id=own, number=7)
        weekly = schedule(call, "0 9 * * 1", key="zz-weekly", overlap=False, jitter=hour).id
    schedule(tasks.system.call(note="x"), every=hour, key="zz-often")
    for number, hand in enumerate((True, False)):
        run = {"by_hand": hand, "run_by": "zz-ann", "outcome": ""}
        insert("schedule_tick", schedule_id=weekly, store_id=own, number=number, tick_at=now, **run)
    change("UPDATE salon_jobs_schedule SET ticks = 2")
    for status in ("pending", "published", "failed", "skipped"):
        write(status, aggregate=f"zz-{status}", store=own)
    block(write(aggregate="zz-waiting"), "waiting")
    write(aggregate="zz-waiting")
    write(kind="rn::nats:::zz-down")
    insert("destination", aggregate_type=ORDERS, paused=True, paused_by="zz-ann", paused_at=now)
    outage = {"outage_since": now - hour, "outage_code": "ZZ.DOWN", "outage": "zz"}
    insert("destination", aggregate_type="rn::nats:::zz-down", **outage)
    for status in ("enqueued", "rejected", "retry", "dismissed"):
        told = {"code": "ZZ.BAD", "reason": "zz", "event": "zz"}
        insert("inbox", consumer="zz", message_id=f"zz-{status}", status=status, raw=b"zz", **told)
    change("INSERT INTO salon_jobs_replay (requested_by, reason, criteria, messages) VALUES ('zz-ann', 'zz', '{}', 2)")
    change(
        "INSERT INTO salon_jobs_partition (partition, owner) VALUES (0, NULL), (1, 70), (2, 70)"
        " ON CONFLICT (partition) DO UPDATE SET owner = excluded.owner"
    )
    count_runs("zz-nightly", "default", 7, 1, 0.3)
    yield own
    kept = [entry for entry in cron_entries.all() if entry.task_name != "zz-nightly"]
    cron_entries.clear()
    for entry in kept:
        cron_entries.add(entry)
    registry.unregister("zz-nightly")


def test_every_page_is_translated(operator: Client, rows: UUID) -> None:
    pages = [ADMIN, *(f"{ADMIN}{page}" for page in ("job/failures/", "job/group/?fingerprint=-7", "job/404/change/"))]
    some = ("?zz=1", *(f"overview/?{what}" for what in ("task=zz-nightly", "queue=default", "queue=zz", "zz=1")))
    pages += [f"{ADMIN}job/{page}" for page in some]
    pages += [f"{ADMIN}job/overview/?store={store}" for store in (rows, "zz")]
    for model in admin.site._registry:
        if model._meta.app_label == "salon_jobs":
            name = model._meta.model_name
            pages += [f"{ADMIN}{name}/", f"{ADMIN}{name}/?q=zz"]
            keys = () if name == "dashboard" else model._default_manager.using("operator").values_list("pk", flat=True)
            pages += [f"{ADMIN}{name}/{quote(key)}/change/" for key in keys]
    left: dict[str, str] = {}
    for page in pages:
        left |= untranslated(operator, page)
    one_store = staff(rows, may=("view_dashboard", "view_limit"))
    for page in ("dashboard/", "job/", "job/?store=1", "message/", "limit/", "job/1/change/", "message/1/change/"):
        left |= untranslated(one_store, f"{ADMIN}{page}")
    wrong = {"kind": "store", "name": "zz", "rate": "zz", "unlimited": "on", "max_concurrency": "1"}
    left |= untranslated(operator, f"{ADMIN}limit/add/", wrong)
    left |= untranslated(operator, f"{ADMIN}schedule/add/", _SURE | {"line": "", "every": "zz", "task": "test-store"})
    assert left == {}


def test_actions_are_translated(operator: Client, rows: UUID) -> None:
    left = dict[str, str]()
    for model, each in reversed(admin.site._registry.items()):  # aggregates before what blocks them
        if model._meta.app_label != "salon_jobs":
            continue
        page, keys = f"{ADMIN}{model._meta.model_name}/", [*model._default_manager.using("operator").order_by("pk")]
        offered: Any = each.actions
        for action in offered:
            every, one = form(action.name, *(row.pk for row in keys)), form(action.name, keys[-1].pk)
            given = {"line": "0 9 * * 1", "at": "2030-01-01T00:00", "reason": "zz", "from_start": "on", "priority": "7"}
            scopes = {"verb": "paused", "scopes": ["task:zz-nightly", "queue:default"]}
            for sent in (one, every, every | _SURE, one | _SURE | {"arguments": "[]"}, every | _SURE | given | scopes):
                left |= untranslated(operator, page, sent)
            left |= untranslated(operator, page)  # with what the answers that redirect to it have said
    assert left == {}


def test_log_and_terminal_stay_english(operator: Client, rows: UUID) -> None:
    operator.post(f"{ADMIN}job/", form("change", add(), priority="7", **_SURE))
    operator.post(f"{ADMIN}message/", form("replay", 2, reason="zz", **_SURE))
    operator.post(f"{ADMIN}cronentrystate/", form("resume", "zz-nightly"))
    logged = " ".join(f"{row} {text}" for row, text in seen("SELECT object_repr, change_message FROM django_admin_log"))
    assert "given priority 7" in logged
    assert logged.isascii()
    for command in ("list", "show 1", "cron list", "limit", "cancel 1 --yes", "list --json", "cron list --json"):
        said = "".join(run(*command.split()))
        assert said.replace("…", "").replace("–", "").isascii(), command


TEMPLATES = sorted((Path(salon_jobs.__file__).parent / "templates/admin/salon_jobs").glob("*.html"))


def test_column_and_filter_names_are_lazy() -> None:
    ours: list[Any] = [each for model, each in admin.site._registry.items() if model._meta.app_label == "salon_jobs"]
    offered = [each for one in ours for each in one.list_filter if hasattr(each, "parameter_name")]
    filters = {each.__name__: each.title for each in offered}
    functions = {f"{one.opts}.{name}": getattr(type(one), name) for one in ours for name in dir(type(one))}
    named = {name: each.short_description for name, each in functions.items() if hasattr(each, "short_description")}
    assert len(named) > 100
    assert len(filters) > 10
    assert [name for name, text in (named | filters).items() if not isinstance(text, Promise)] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_templates_have_no_untranslated_text(template: Path) -> None:
    text = re.sub(r"{% blocktranslate.*?endblocktranslate %}|{#.*?#}", "", template.read_text(), flags=re.DOTALL)
    assert re.findall(r"<[a-z0-9]+(?: [^<>]*)?>([^<>{}%]*[A-Za-z]{2}[^<>{}%]*)</", text) == []
    assert re.findall(r'(?:aria-label|title)="([A-Z][^"{}<>]*)"', text) == []


def test_makemessages_finds_every_text() -> None:
    names, built = {"gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "_"}, list[str]()
    for path in Path(salon_jobs.__file__).parent.rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        of_texts = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id in names]
        built += [f"{path}:{each.lineno}" for each in of_texts if isinstance(each.args[0], ast.JoinedStr | ast.BinOp)]
    assert built == []
