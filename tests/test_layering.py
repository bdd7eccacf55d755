"""The folders of the package are its layers, and some packages are imported by one module alone."""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import cache
from importlib import import_module
from inspect import getclosurevars
from pathlib import Path

import pytest

from tests.interpreter import ROOT, run_command

PACKAGE = ROOT / "salon_jobs"

# A folder (or module) imports from itself and from those above it in this list, never from one below.
LAYERS = (
    *("core", "signals", "conf", "db", "models", "words", "tenancy", "access", "brokers", "jobs", "process"),
    *("schedules", "outbox", "inbox", "worker", "backend", "control", "verbs", "integrations", "erasure", "dashboard"),
    *("migrations", "testing", "checks", "apps", "management", "staff", "admin", "templatetags"),
)
# What a folder must not reach, not even through a third module.
NEVER_REACHES = {
    "core": {"django", "psycopg"},
    "outbox": {"jobs", "worker", "schedules", "inbox"},
    "brokers": {"jobs", "worker", "schedules", "outbox", "inbox"},
    "jobs": {"outbox", "inbox", "worker", "process", "brokers"},
    "process": {"jobs", "worker", "schedules", "outbox", "inbox"},
    "backend": {"worker", "process", "admin"},
}
OWNERS = {
    "sentry_sdk": {"salon_jobs.integrations.sentry"},
    "opentelemetry": {"salon_jobs.integrations.opentelemetry"},
    "croniter": {"salon_jobs.schedules.cron"},
    "rest_framework": {"salon_jobs.integrations.rest_framework"},
    "health_check": {"salon_jobs.integrations.health_check"},
    "prometheus_client": {"salon_jobs.process.exposition"},
    "environ": set[str](),
    "project": set[str](),
    "django.conf": {"salon_jobs.conf"},
    "django.tasks": {"salon_jobs.backend.framework"},
    "django_tasks": {"salon_jobs.backend.framework"},
    # Its fields and lookups want it among the INSTALLED_APPS of the host (an error of the checks from Django 6.1 on).
    "django.contrib.postgres": set[str](),
}

# How often at most a module reads the setting DATABASE: where calls come in. Below, it is a parameter (``using``).
DOORS = {
    **dict.fromkeys(("access.strict", "admin.reader", "apps", "backend", "checks.bounds", "checks.isolation"), 1),
    **dict.fromkeys(("db.router", "integrations.health_check", "integrations.rest_framework"), 1),
    **dict.fromkeys(("management.output", "management.service", "process.web_roles"), 1),
    **dict.fromkeys(("tenancy.request", "tenancy.resolvers"), 1),
    **dict.fromkeys(("checks", "db.connections", "testing.drain"), 2),
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


MODULES = FILES.keys() - {"salon_jobs"}


def folder_of(module: str) -> str:
    return module.split(".")[1]


def layer_of(module: str) -> int:
    return LAYERS.index(folder_of(module))


@cache
def _imports(module: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return every module a module imports, at its top or in functions, and those for type checkers alone."""
    tree = ast.parse(FILES[module].read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    found = set[str](), set[str]()
    for node in ast.walk(tree):
        names = found[id(node) in for_types]
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            each = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in FILES else node.module for name in each}
    return frozenset(found[0]), frozenset(found[1])


def imports(module: str, *, for_types_too: bool = False) -> frozenset[str]:
    used, for_types = _imports(module)
    return used | for_types if for_types_too else used


def reaches(module: str, *, for_types_too: bool = False) -> set[str]:
    """Return everything a module imports, directly or through others. The public names of the package do not count."""
    seen: set[str] = set()
    ahead = [module]
    while ahead:
        for name in imports(ahead.pop(), for_types_too=for_types_too) - seen:
            seen.add(name)
            if name in FILES and name != "salon_jobs":
                ahead.append(name)
    return seen


def test_imports_follow_layers() -> None:
    ours = [(module, other) for module in MODULES for other in imports(module) if other.startswith("salon_jobs.")]
    assert len(ours) > 1000
    assert [each for each in ours if layer_of(each[1]) > layer_of(each[0])] == []


def test_imports_form_no_circle() -> None:
    """Nor do those in functions and for type checkers: what two modules need of each other belongs into a third."""
    reached = {module: reaches(module, for_types_too=True) for module in MODULES}
    circles = {
        frozenset(other for other in seen & reached.keys() if module in reached[other])
        for module, seen in reached.items()
        if module in seen
    }
    assert not circles


@pytest.mark.parametrize("folder", NEVER_REACHES)
def test_folders_never_reach_some_layers(folder: str) -> None:
    for module in MODULES:
        if folder_of(module) == folder:
            reached = reaches(module)
            layers = {folder_of(name) for name in reached if name.startswith("salon_jobs.")}
            assert not (layers | {name.split(".")[0] for name in reached}) & NEVER_REACHES[folder], module


@pytest.mark.parametrize("package", OWNERS)
def test_package_has_one_importer(package: str) -> None:
    found = {module for module in FILES for other in imports(module) if f"{other}.".startswith(f"{package}.")}
    assert found == OWNERS[package]


def test_database_setting_is_read_at_doors() -> None:
    reads = {module: len(re.findall(r"\bconf\.database\b", path.read_text())) for module, path in FILES.items()}
    found = {module.partition(".")[2]: count for module, count in reads.items()}
    assert {module: count for module, count in found.items() if count > DOORS.get(module, 0)} == {}


def test_no_class_is_thread() -> None:
    """The private names of ``threading.Thread`` differ between versions, and an instance of it has more of them."""
    threads = {
        f"{module}.{node.name}"
        for module, path in FILES.items()
        if "Thread" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Thread") for base in node.bases)
    }
    assert threads == set()


def sdks() -> set[str]:
    modules = [module for module in FILES if module.startswith("salon_jobs.brokers.")]
    outside = {name.split(".")[0] for module in modules for name in imports(module)}
    return outside - sys.stdlib_module_names - {"salon_jobs", "django", "msgspec"}


def test_one_module_imports_each_sdk() -> None:
    assert {"nats", "boto3", "botocore", "azure", "requests"} <= sdks()
    for package in sdks():
        [user] = [name for name in FILES if any(other.split(".")[0] == package for other in imports(name))]
        assert user.startswith("salon_jobs.brokers.")


@pytest.mark.parametrize("name", ["core", "conf", "outbox", "inbox", "checks", "integrations"])
def test_brokers_are_named_in_their_folders(name: str) -> None:
    for path in PACKAGE.glob(f"{name}/**/*.py"):
        named = re.findall(r"(?i)\b(nats|sns|sqs|azure\w*|aws)\b", path.read_text())
        assert named == [], path


@pytest.mark.process
def test_message_check_imports_no_sdk() -> None:
    loaded = modules_loaded_by(
        "from uuid import UUID\n"
        "from salon_jobs.brokers.publisher import OutgoingMessage\n"
        "from salon_jobs.brokers.registry import checker_for\n"
        "for name in ('rn::nats:::orders', 'arn:aws:sns:eu-west-1:123456789012:orders', 'rn::azurequeue:::orders'):\n"
        "  message = OutgoingMessage(0, UUID(int=0), name, '1', 'e', '{}', '{}', None, '', 0.0)\n"
        "  checker_for(name.split(':')[2]).check(message)\n"
    )
    assert not sdks() & loaded


@pytest.mark.process
def test_web_process_loads_little() -> None:
    loaded = modules_loaded_by(
        "from salon_jobs import cron, emit, enqueue_job, fan_out, store_task, task, tenant_context\n"
        "from uuid import UUID\n"
        "@task(name='tidy-up')\n"
        "def tidy_up() -> None: ...\n"
        "@store_task(name='tidy-up-store')\n"
        "def tidy_up_store(store_id: UUID) -> None: ...\n"
        "cron('0 3 * * *', tidy_up)\n"
    )
    heavy = {"worker", "process", "inbox", "integrations", "admin", "management", "testing", "dashboard", "erasure"}
    assert not {name for name in loaded if name.startswith("salon_jobs.") and folder_of(name) in heavy}
    assert not {name for name in loaded if name.startswith("salon_jobs.outbox.")} - {"salon_jobs.outbox.emit"}
    assert not {"sentry_sdk", "health_check", "opentelemetry", "prometheus_client", "rich", *sdks()} & loaded


@pytest.mark.process
def test_only_what_prints_loads_rich() -> None:
    """Neither a web process with its admin does, nor a service unless it has a terminal for its banner."""
    left_out = ("salon_jobs.management.output", "salon_jobs.management.subcommands", "salon_jobs.migrations")
    extras = ("salon_jobs.integrations", "salon_jobs.brokers")
    others = [name for name in FILES if not name.startswith((*left_out, *extras))]
    loaded = modules_loaded_by(
        "settings.DATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'x'}}\n"
        "apps = ('admin', 'auth', 'contenttypes', 'messages', 'sessions')\n"
        "settings.INSTALLED_APPS = [*(f'django.contrib.{app}' for app in apps), 'salon_jobs', 'pgtrigger']\n"
        "import django; django.setup()\n"
        "from importlib import import_module\n"
        f"for name in {others}: import_module(name)\n"
    )
    assert {"salon_jobs.admin.job", "salon_jobs.tenancy.request", "salon_jobs.management.commands.salon_jobs"} < loaded
    assert not {name for name in loaded if name.split(".")[0] == "rich"}


@pytest.mark.process
def test_setup_loads_little_but_models() -> None:
    loaded = modules_loaded_by(
        "settings.DATABASES = {'default': {'ENGINE': 'django.db.backends.postgresql', 'NAME': 'x'}}\n"
        "apps = ('admin', 'auth', 'contenttypes', 'messages', 'sessions')\n"
        "settings.INSTALLED_APPS = [*(f'django.contrib.{app}' for app in apps), 'salon_jobs', 'pgtrigger']\n"
        "import django; django.setup()\n"
        "from django.contrib import admin\n"
        "assert sum(model.__module__.startswith('salon_jobs.') for model in admin.site._registry) == 15"
    )
    ours = {name for name in loaded if name.startswith("salon_jobs.")}
    assert {folder_of(name) for name in ours} == {"admin", "apps", "conf", "core", "db", "models"}
    assert {name for name in ours if folder_of(name) in ("admin", "conf")} == {
        *("salon_jobs.admin", "salon_jobs.conf", "salon_jobs.conf.store_key")
    }
    assert not {"croniter", "msgspec", "sentry_sdk", "health_check", "opentelemetry", *sdks()} & loaded


@pytest.mark.parametrize("package", ["salon_jobs", "salon_jobs.admin", "salon_jobs.conf", "salon_jobs.staff"])
def test_lazy_names_match_typed_names(package: str) -> None:
    tree = ast.parse(FILES[package].read_text())
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
        if alias.asname == alias.name
    }
    late = getclosurevars(vars(import_module(package))["__getattr__"]).nonlocals["modules"]
    assert {name: f"{package}.{module}" for name, module in late.items()} == typed
    for name in typed:
        assert getattr(import_module(package), name).__module__.startswith("salon_jobs.")


def modules_loaded_by(program: str) -> set[str]:
    """Run a program in a fresh interpreter with the least of settings, and return the modules it has loaded."""
    whole = (
        "import json, sys\n"
        "from django.conf import settings; settings.configure(DATABASES={'default': {}})\n"
        f"{program}\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ended = run_command(sys.executable, "-c", whole)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


def test_only_settings_read_environment() -> None:
    # What starts a server for a command hands its own environment on, what makes its folder asks whether TMPDIR names
    # another place than memory, and the web server's entry names the settings.
    # What belongs to a terminal and no project, such as NO_COLOR, is asked by process.logs.
    files = [*FILES.values(), *(ROOT / "project").rglob("*.py")]
    readers = {name_of(path) for path in files if _reads_environment(path)}
    servers = {"project.local.postgres_run", "project.local.postgres_install"}
    assert readers == {"project.settings", *servers, "project.wsgi", "salon_jobs.process.logs"}


def test_statements_document_locks_and_role() -> None:
    files = sorted(set((PACKAGE / "db" / "sql").glob("*.sql")) - {PACKAGE / "db" / "sql" / "parts.sql"})
    statements = [text for file in files for text in re.split(r"(?m)^-- name: ", file.read_text()) if text]
    assert len(statements) > 100
    for statement in statements:
        header = [line for line in statement.splitlines() if line.startswith("--")]
        text = " ".join(header)
        assert header, statement
        assert "Locks:" in text or "FUNCTION __schema__.salon_jobs_add_job(" in statement, statement
        assert "Role:" in text or re.search(r"(?m)^(GRANT EXECUTE|CREATE .*TRIGGER) ", statement), statement


def test_system_tests_are_in_makefile() -> None:
    [folders] = re.findall(r"(?m)^SYSTEM_TESTS := (.*)$", (ROOT / "Makefile").read_text())
    marked = {path for path in (ROOT / "tests").rglob("*.py") if re.search(r"pytest\.mark\.system\b", path.read_text())}
    assert marked
    assert all(any(path.is_relative_to(ROOT / folder) for folder in folders.split()) for path in marked)


def _reads_environment(path: Path) -> bool:
    if "env" not in (source := path.read_text()):
        return False
    text = ast.unparse(ast.parse(source))
    of_os = r"\bos\.(environb?|getenvb?)\b|^ *from os import .*\b(environb?|getenvb?)\b"
    return bool(re.search(rf"{of_os}|^ *import (.*, )?environ\b", text, re.MULTILINE))
