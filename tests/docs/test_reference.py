"""The reference has everything that the code has, and nothing else."""

from __future__ import annotations

import re
from argparse import SUPPRESS
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import partial
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pytest
from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand, CommandParser
from django.db.models import Model

import salon_jobs
from project import settings as project_settings
from salon_jobs import access, control, jobs, outbox, tenancy, testing
from salon_jobs.brokers.broker import brokers, sections
from salon_jobs.conf import Roles, Settings
from salon_jobs.conf.reader import DurationOrZero, Section
from salon_jobs.conf.sections import LoggingSettings, OutboxSettings
from salon_jobs.core import errors, events
from salon_jobs.core.backoff import Backoff
from salon_jobs.integrations import sentry
from salon_jobs.jobs.options import DeclaredLimits, EnqueueOptions, ErrorRules, JobOptions, TaskOptions, Timeouts
from salon_jobs.management.subcommands import Subcommand
from salon_jobs.management.subcommands.messages import ACTIONS
from salon_jobs.management.subcommands.registry import SUBCOMMANDS
from tests.docs.markdown import ROOT, read, rows, section
from tests.metrics import METRICS
from tests.support import public_names, seen

EVENTS = {value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)}
SOURCES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "salon_jobs").rglob("*.py"))]


SETTING = re.compile(
    r"^##+ `(?P<key>[^`]+)`\n\n"
    r"Default: `(?P<default>[^`]*)`\. Type: (?P<type>[^\n]+?)\.(?: Demo: `(?P<variable>\w+)`\.)?$",
    re.MULTILINE,
)


def shown(value: object) -> str:
    """Write a default as the reference does."""
    if isinstance(value, timedelta):
        for unit in (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)):
            if value >= unit and not value % unit:
                name = {86400: "day", 3600: "hour", 60: "minute"}[int(unit.total_seconds())]
                return f"{value // unit} {name}{'s' if value > unit else ''}"
        return f"{value.total_seconds():.1f} s".replace(".0 ", " ")
    if type(value).__module__.startswith("salon_jobs.conf."):
        return "{}"
    return "Backoff()" if isinstance(value, Backoff) else repr(value)


def type_of(kind: Any) -> str:
    """Write the type of a field as the reference does."""
    if get_origin(kind) in (Union, UnionType):
        *some, last = [type_of(each) for each in get_args(kind)]
        return f"{', '.join(some)}{',' if ',' in some[-1] else ''} or {last}"
    if kind == DurationOrZero:
        return "duration, zero or more"
    if get_origin(kind) is Annotated:
        bounds = [
            f", {note.ge:,} to {note.le:,}" for note in kind.__metadata__ if getattr(note, "ge", None) is not None
        ]
        return "".join([type_of(get_args(kind)[0]), *bounds])
    if get_origin(kind) is tuple:
        return "list of str" if Ellipsis in get_args(kind) else "pair of str"
    if get_origin(kind) is Mapping or (isinstance(kind, type) and issubclass(kind, Section)):
        return "dict"
    words = {NoneType: "None", timedelta: "duration", Literal: "str"}
    return words.get(get_origin(kind) or kind) or str(kind.__name__)


# What is accepted beside the type that is kept.
WIDER = {
    "SERVER": "str or list of str",
    "THROUGHPUT": "int, 1 to 10,000,000, or None, or dict",
    "VISIBILITY_TIMEOUT": "duration, 1 s to 7 days",
}


def declared(kind: Callable[[], Any]) -> dict[str, tuple[str, str]]:
    """Return the default and the type of each key of a section."""
    section = kind()
    return {
        field.encode_name: (shown(getattr(section, field.name)), WIDER.get(field.encode_name) or type_of(field.type))
        for field in msgspec.structs.fields(section)
    }


def read_by_demo(prefix: str) -> set[str]:
    """Return the environment variables that the demo's settings name in full."""
    return set(re.findall(rf'"({prefix}_\w+)"(?=[,)])', read("project/settings.py")))


def read_for_broker(section: str) -> set[str]:
    """Return the environment variables of a broker's section, or "" if the demo reads none."""
    readers: dict[str, Any] = getattr(project_settings, f"_{section}_READERS", {"": ("", None)})
    return {read[0] if isinstance(read, tuple) else f"{section}_{key}" for key, read in readers.items()}


def documented(page: str, heading: str | None = None) -> list[list[str]]:
    text = read(f"docs/reference/{page}")
    return rows(text if heading is None else section(text, heading))


def documented_settings() -> dict[str, re.Match[str]]:
    page = read("docs/reference/settings.md")
    found = {setting["key"]: setting for setting in SETTING.finditer(page)}
    assert len(found) == page.count("\nDefault: ")
    return found


def test_settings_and_their_defaults() -> None:
    found = documented_settings()
    expected = declared(Settings) | dict.fromkeys(sections(), ("{}", "dict"))
    assert {key: (found[key]["default"], found[key]["type"]) for key in found if "[" not in key} == expected


@pytest.mark.parametrize(("heading", "kind"), [("ROLES", Roles), ("BACKOFF", Backoff)])
def test_roles_and_backoff_in_the_settings(heading: str, kind: Callable[[], Any]) -> None:
    section = kind()
    named = fields(section) if is_dataclass(section) else msgspec.structs.fields(section)
    expected = {field.name: getattr(section, field.name) for field in named}
    expected = {name: value if isinstance(value, str) else shown(value) for name, value in expected.items()}
    assert {row[0]: row[1] for row in documented("settings.md", f"## `{heading}`")} == expected


@pytest.mark.parametrize(
    ("key", "kind", "variables"),
    [
        ("OUTBOX", OutboxSettings, read_by_demo("OUTBOX") | {""}),
        ("LOGGING", LoggingSettings, read_by_demo("LOG")),
        *((each.section, partial(each.read, {}), read_for_broker(each.section)) for each in brokers()),
    ],
)
def test_sections_and_demo_variables(key: str, kind: Callable[[], Any], variables: set[str]) -> None:
    found = {name.split('"')[1]: each for name, each in documented_settings().items() if name.startswith(f"{key}[")}
    assert {name: (each["default"], each["type"]) for name, each in found.items()} == declared(kind)
    assert {each["variable"] or "" for each in found.values()} == variables
    assert key in ("OUTBOX", "AZURE") or all(
        (each["variable"] or f"_{name}").endswith(f"_{name}") for name, each in found.items()
    )


def test_options_of_tasks_and_their_defaults() -> None:
    text = section(read("docs/reference/public-api.md"), "## Declare")
    [listed] = re.findall(r"@task\(name=None, ([^)]*)\)", text)
    named = dict(each.split("=") for each in re.split(r",\s+", listed))
    held = [each for kind in (JobOptions, DeclaredLimits, ErrorRules, Timeouts) for each in fields(kind)]
    default = {field.name: repr(field.default).replace("'", '"') for field in held}
    assert named == {name: default.get(name, named[name]) for name in TaskOptions.__annotations__}
    of_tasks = {"backoff": "None", "at_most_once": "False", "max_deaths": "None"}
    assert {name: named[name] for name in named.keys() - default} == of_tasks


def test_options_of_enqueue() -> None:
    text = section(read("docs/reference/public-api.md"), "## Enqueue")
    [listed] = re.findall(r"a_task\.using\((queue=[^)]*)\)", text)
    documented = [name for row in rows(text) if "(" not in row[0] for name in row[0].split("`, `")]
    assert sorted(re.findall(r"(\w+)=", listed)) == sorted(documented) == sorted(EnqueueOptions.__annotations__)


def test_places_that_ask_for_one_user() -> None:
    page = read("docs/architecture/stores.md")
    named = {f"salon_jobs/{name}" for row in rows(page) for name in re.findall(r"`?([\w/]+\.py)", row[0])}
    package = ROOT / "salon_jobs"
    asking = {str(path.relative_to(ROOT)) for path in package.rglob("*.py") if ".one_user" in path.read_text("utf-8")}
    assert asking == named


def test_log_records_for_sentry() -> None:
    text = section(read("docs/how-to/sentry.md"), "### Log records")
    _, reported, routine, lasting = re.split(r"^- \*\*", text, flags=re.MULTILINE)
    of_code = [set(events.REPORTED_OTHERWISE), set(events.ROUTINE), set(sentry._LASTING)]
    assert [{*re.findall(r"`(\w+)`", each)} & EVENTS for each in (reported, routine, lasting)] == of_code
    table = rows(section(read("docs/how-to/sentry.md"), "## In the demo"))
    assert {row[0] for row in table} == read_by_demo("SENTRY")


def test_metrics_page() -> None:
    found = [(row[0], row[1], row[2].replace("`", ""), row[3]) for row in documented("metrics.md") if len(row) == 4]
    assert found == [(metric.name, metric.kind, ", ".join(metric.labels), metric.help) for metric in METRICS]


def test_system_checks() -> None:
    found = {row[0] for row in documented("settings.md", "## System checks")}
    assert found == set(re.findall(r"salon_jobs\.[EIW]\d{3}", "".join(SOURCES)))


COMMANDS = sorted(path.stem for path in (ROOT / "salon_jobs/management/commands").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("dumpdata", "migrate", "salon_jobs")])
def test_commands_and_their_options(name: str) -> None:
    options = _options(load_command_class("salon_jobs", name)) - _options(BaseCommand())
    assert {row[0].split()[0] for row in documented("commands.md", f"## `{name}`")} == options


@pytest.mark.parametrize(
    ("name", "subcommand"),
    [
        *((each.name, each) for each in SUBCOMMANDS if each.name != "messages"),
        *((f"messages {each.name}", each) for each in ACTIONS),
    ],
)
def test_subcommands_and_their_options(name: str, subcommand: Subcommand) -> None:
    parser = CommandParser()
    subcommand.add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    found = {row[0].split()[0] for row in documented("commands.md", f"### `salon_jobs {name}`")}
    assert found == options - {"--help"}


def test_no_other_command_is_documented() -> None:
    headings = re.findall(r"^##(#?) `(?:salon_jobs )?([\w-]+)`$", read("docs/reference/commands.md"), re.MULTILINE)
    assert sorted(name for level, name in headings if not level) == COMMANDS
    assert sorted(name for level, name in headings if level) == sorted(each.name for each in SUBCOMMANDS)


def test_error_codes() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    base = errors.SalonJobsError
    expected = {(kind.code, kind.__name__) for kind in kinds if hasattr(kind, "code") and kind is not base}
    assert {(row[0], row[1]) for row in documented("errors.md")} == expected


def test_log_events() -> None:
    literal = re.findall(r'(?:log_event\([\w.]+, |"event": )"(\w+)"', "".join(SOURCES))
    assert {row[0] for row in documented("log-events.md")} == EVENTS | {*literal}


@pytest.mark.parametrize(
    "module", [salon_jobs, jobs, tenancy, outbox, access, control], ids=lambda module: module.__name__
)
def test_public_names_by_module(module: ModuleType) -> None:
    table = section(read("docs/reference/public-api.md"), f"## `{module.__name__}`")
    assert {row[0] for row in rows(table)} == public_names(module)


def test_public_names_of_the_testing_module() -> None:
    named = re.findall(r"`(\w+)`", section(read("docs/reference/public-api.md"), "## Testing"))
    assert set(testing.__all__) == set(named) - {"salon_jobs"}


@pytest.mark.parametrize(
    "model", [each for each in apps.get_app_config("salon_jobs").get_models() if not each._meta.proxy]
)
def test_tables_page(model: type[Model]) -> None:
    meta = model._meta
    found = [row[0] for row in documented("tables.md", f"## `{meta.db_table}`")]
    names = [each.name for each in (*meta.indexes, *meta.constraints)]
    # A composite primary key is a field without a column.
    assert found == [*(field.column for field in meta.local_fields if field.column is not None), *names]


@pytest.mark.usefixtures("database")
def test_grants_policies_and_functions() -> None:
    grants = """
        SELECT table_name, grantee, string_agg(privilege_type, ', ' ORDER BY privilege_type)
        FROM information_schema.role_table_grants
        WHERE table_name LIKE 'salon\\_jobs\\_%%' AND grantee <> 'migrator' GROUP BY 1, 2
    """
    assert _plain("## Job tables", 3) == {tuple(row) for row in seen(grants)}
    policies = """
        SELECT tablename, policyname, cmd, array_to_string(roles, ', '), CASE WHEN coalesce(qual, with_check) = 'true'
               THEN 'every row' WHEN cmd = 'UPDATE'
               THEN 'the current store''s that are queued, failed or cancelled; afterwards queued or cancelled'
               ELSE 'the current store''s' END
        FROM pg_policies WHERE tablename LIKE 'salon\\_jobs\\_%%'
    """
    assert _plain("## Policies", 5) == {tuple(row) for row in seen(policies)}
    columns = """
        SELECT a.privilege_type, string_agg(attname, ', ' ORDER BY attname)
        FROM pg_attribute, aclexplode(attacl) AS a WHERE attrelid = 'salon_jobs_job'::regclass GROUP BY 1
    """
    assert {(what.split(",")[0], names) for what, names in _plain("## Job tables", 2)} == set(seen(columns))
    functions = """
        SELECT proname, proowner::regrole::text, prosecdef, coalesce((
               SELECT string_agg(rolname, ', ' ORDER BY rolname) FROM aclexplode(proacl) JOIN pg_roles ON oid = grantee
                WHERE grantee <> proowner), 'no role')
        FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname ~ '^(salon_jobs|list_store_ids)'
    """
    assert {
        (name, owner, "SECURITY DEFINER" in text, ", ".join(sorted(callers.split(", "))))
        for name, owner, callers, text in _plain("## Functions", 4)
    } == set(seen(functions))


def _plain(heading: str, width: int) -> set[tuple[str, ...]]:
    found = documented("roles.md", heading)
    return {tuple(cell.replace("`", "") for cell in row) for row in found if len(row) == width}


def _options(command: Any) -> set[str]:
    parser = command.create_parser("manage.py", "command")
    shown = [action for action in parser._actions if action.help != SUPPRESS]
    return {option for action in shown for option in action.option_strings if option.startswith("--")}
