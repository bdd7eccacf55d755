"""Django's settings, from the environment, which no other module of the project reads.

Each process gets one database URL, for the role it works as: the migrator for migrations, the worker role for worker,
scheduler, relay and consumer, the web role for everything else. No process is given more than it needs.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import django
import environ
from django.core.exceptions import ImproperlyConfigured

from project.tracing import trace_to

env = environ.Env()
BASE_DIR: Final = Path(__file__).resolve().parent.parent

_MIGRATOR_COMMANDS: Final = frozenset(
    {
        "makemigrations",
        "migrate",
        "optimizemigration",
        "showmigrations",
        "sqlmigrate",
        "squashmigrations",
        "createsuperuser",
        "changepassword",
        "create_demo_operator",
        "pgtrigger",
    }
)
_WORKER_COMMANDS: Final = frozenset(
    {"consume_queue", "relay_outbox", "runscheduler", "runworker"}
    | {f"salon_jobs {service}" for service in ("consumer", "relay", "scheduler", "worker")}
)
_WEB_COMMANDS: Final = frozenset(
    {"clearsessions", "dbshell", "invite_operator", "join_store", "ping", "runserver", "shell"}
)


def _command() -> str:
    arguments = sys.argv[1:]
    if arguments[:1] == ["salon_jobs"]:
        return " ".join(arguments[:2])
    return arguments[0] if arguments and not arguments[0].startswith("-") else ""


def _database_variable(command: str) -> str:
    if command in _MIGRATOR_COMMANDS:
        return "DATABASE_URL_MIGRATOR"
    return "WORKER_DATABASE_URL" if command in _WORKER_COMMANDS else "DATABASE_URL"


def _database(variable: str) -> dict[str, Any]:
    try:
        with warnings.catch_warnings(action="ignore"):  # which would show the URL, and in it a password
            database: dict[str, Any] = env.db_url(variable)
    except ValueError:
        database = {}
    if not database.get("ENGINE", "").endswith("postgresql") or not database.get("NAME"):
        # The value is not shown, because it contains a password.
        raise ImproperlyConfigured(f"{variable} is malformed; write postgresql://role:password@host:5432/database")
    options: dict[str, Any] = database.setdefault("OPTIONS", {})
    if options.get("pool") in ("true", "True", "1"):  # a URL can only carry strings
        options["pool"] = True
    kept_s = None if _COMMAND in _WORKER_COMMANDS else 60
    # The pool keeps the connections itself, and Django rejects both together.
    return {"CONN_MAX_AGE": 0 if "pool" in options else kept_s, "CONN_HEALTH_CHECKS": True} | database


def _default_database() -> dict[str, Any]:
    """Connect as the role this process needs; without its URL, refuse commands that cannot work without one."""
    variable = _database_variable(_COMMAND)
    if variable in env:
        return _database(variable)
    asks_for_help = not {"-h", "--help"}.isdisjoint(sys.argv)
    if _COMMAND in _MIGRATOR_COMMANDS | _WORKER_COMMANDS | _WEB_COMMANDS and not asks_for_help:
        raise ImproperlyConfigured(
            f"{_COMMAND} needs {variable} in its environment: postgresql://role:password@host/db"
        )
    return {"ENGINE": "django.db.backends.postgresql", "NAME": ""}  # Django refuses to connect without a name


def _log_level(variable: str, default: str) -> str:
    """Read the name of a log level in any case; return it as logging spells it."""
    given = env.str(variable, default)
    level = logging.getLevelNamesMapping().get(given.upper())
    if not level:
        raise ImproperlyConfigured(f"{variable} is {given!r}; write debug, info, warning, error or critical")
    return logging.getLevelName(level)


def _flag(variable: str, default: bool = False) -> bool:
    """Read a flag. (django-environ treats every unknown word as off.)"""
    given = env.str(variable, str(default))
    if given.lower() in {"true", "on", "ok", "yes", "y", "1"}:
        return True
    if given.lower() in {"false", "off", "no", "n", "0", ""}:
        return False
    raise ImproperlyConfigured(f"{variable} is {given!r}; write true or false")


def _rate(variable: str, default: float) -> float:
    given = env.str(variable, str(default))
    try:
        rate = float(given)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1:
        raise ImproperlyConfigured(f"{variable} is {given!r}; write a number from 0 to 1")
    return rate


def _throughput(variable: str) -> dict[str, int | None]:
    """Read a rate, or rates by service or destination in JSON; zero means no limit."""
    rates: Any = env.json(variable, 3000)
    return {name: rate or None for name, rate in (rates if isinstance(rates, dict) else {"*": rates}).items()}


def _refetch(variable: str) -> float | None:
    return None if env.str(variable) == "off" else env.float(variable)


def _pair(variable: str) -> tuple[str, str]:
    """Read a pair whose second half has a variable of its own."""
    return env.str(variable), env.str(_SECOND_HALVES[variable])


def _given(key: str, variable: str) -> dict[str, str]:
    """Return the setting, or nothing if its variable is not set."""
    return {key: env.str(variable)} if env.str(variable, "") else {}


_SECOND_HALVES: Final = {
    "NATS_TLS_CERTIFICATE_FILES": "NATS_TLS_KEY_FILE",
    "NATS_USER": "NATS_PASSWORD",
    "SNS_ACCESS_KEY": "SNS_SECRET_KEY",
}
_COMMAND: Final = _command()

DEBUG = _flag("DEBUG", False)
SECRET_KEY = env.str("SECRET_KEY", "")  # needed only by the web process; Django refuses to use an empty one
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "health_check",
    "pgtrigger",
    "salon_jobs",
    "project.salon",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "salon_jobs.tenancy.request.TenantMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "static"
# After collectstatic, as in the image, the web process serves the admin's files, as runserver always does.
if STATIC_ROOT.is_dir():
    MIDDLEWARE.insert(1, "whitenoise.middleware.WhiteNoiseMiddleware")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = ["project.formats"]

DATABASES: dict[str, dict[str, Any]] = {"default": _default_database()}
if "OPERATOR_DATABASE_URL" in env:
    DATABASES["operator"] = _database("OPERATOR_DATABASE_URL")

_MAIL: Final[dict[str, Any]] = {
    "host": env.str("EMAIL_HOST", "127.0.0.1"),
    "port": env.int("EMAIL_PORT", 25),
    "timeout": env.int("EMAIL_TIMEOUT", 10),
}
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.smtp.EmailBackend", "OPTIONS": _MAIL}}
else:
    EMAIL_HOST, EMAIL_PORT, EMAIL_TIMEOUT = _MAIL["host"], _MAIL["port"], _MAIL["timeout"]
DEFAULT_FROM_EMAIL = env.str("DEFAULT_FROM_EMAIL", "Salon <noreply@salon.example>")

SENTRY_DSN = env.str("SENTRY_DSN", "")
SENTRY_LEVEL = _log_level("SENTRY_LEVEL", "warn")
if SENTRY_DSN:
    from project.sentry import report_to

    report_to(
        SENTRY_DSN,
        level=SENTRY_LEVEL,
        sample_rate=_rate("SENTRY_SAMPLE_RATE", 1.0),
        environment=env.str("SENTRY_ENVIRONMENT", "prod"),
        release=env.str("SENTRY_RELEASE", ""),
    )

TRACING = _flag("TRACING", False)
if TRACING:
    trace_to(
        env.str("TRACING_AGENT", ""),
        service_name=env.str("TRACING_SERVICE_NAME", "salon"),
        environment=env.str("TRACING_ENVIRONMENT", "prod"),
    )

_PASSWORD_VARIABLES: Final = {
    "migrator": "MIGRATOR_PASSWORD",
    "web": "APP_PASSWORD",
    "worker": "WORKER_RUNTIME_PASSWORD",
    "operator": "JOBS_OPERATOR_PASSWORD",
}
SALON_JOBS: dict[str, Any] = {
    "STORE_MODEL": "salon.Store",
    "MEMBERSHIP_MODEL": "salon.Membership",
    # On these paths operators see the jobs of all stores, but no business rows.
    "PATHS_WITHOUT_STORE": ["/admin/", "/health/"],
    "STORE_GUC": "app.current_store_id",
    "DATABASE": "default",
    "OPERATOR_DATABASE": "operator" if "operator" in DATABASES else None,
    "ROLES": {
        "migrator": "migrator",
        "web": "app",
        "worker": "worker_runtime",
        "operator": "jobs_operator",
        "fan_out_owner": "worker_fanout_owner",
        "extra_owners": ["invitation_cleanup_owner"],
    },
    "ROLE_PASSWORDS": {role: env.str(name) for role, name in _PASSWORD_VARIABLES.items() if name in env},
    "BOOTSTRAP_URL": env.str("DATABASE_URL_BOOTSTRAP", "") or None,
    "LISTEN": env.str("LISTEN_URL", "") or True,
    "CONCURRENCY": env.int("WORKER_CONCURRENCY", 8),
    "PROCESSES": env.int("WORKER_PROCESSES", 0) or None,
    "LOGGING": {"LEVEL": env.str("LOG_LEVEL", "info"), **_given("FORMAT", "LOG_FORMAT")},
    "SENTRY_LEVEL": SENTRY_LEVEL,
    # Sentry bills per monitor, that is, per cron entry.
    "SENTRY_MONITORS": bool(SENTRY_DSN) and _flag("SENTRY_MONITORS", True),
    "TRACING": TRACING,
    "OUTBOX": {
        "PRODUCER": env.str("OUTBOX_PRODUCER", "salon"),
        "POLL_INTERVAL": env.float("OUTBOX_POLLING_INTERVAL", 5.0),
        "RETRY_COUNT": env.int("OUTBOX_RETRY_COUNT", 10),
        "RETRY_BACKOFF": env.float("OUTBOX_RETRY_BACKOFF", 20.0),
        "THROUGHPUT": _throughput("OUTBOX_THROUGHPUT"),
        "FETCH_LIMIT": env.int("OUTBOX_FETCH_LIMIT", 1000),
    },
}

# Destination of confirmed reservations; the service is the third part.
RESERVATIONS_DESTINATION = env.str("RESERVATIONS_DESTINATION", "rn::nats:::reservations")
# Destination where uploaded files wait to be parsed.
UPLOADS_DESTINATION = env.str("UPLOADS_DESTINATION", "rn::azurequeue:::parse-tasks")

_NATS_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "SERVER": env.str,
    "CLIENT_NAME": env.str,
    "MAX_RECONNECTS": env.int,
    "RECONNECT_WAIT": env.float,
    "RECONNECT_JITTER": env.float,
    "TIMEOUT": env.float,
    "DOMAIN": env.str,
    "TLS_CA_FILE": env.str,
    "TLS_CERTIFICATE_FILES": _pair,
    "USER": _pair,
    "CREDENTIALS_FILE": env.str,
    "TOKEN": env.str,
    "MAX_PAYLOAD": env.int,
}
SALON_JOBS["NATS"] = {key: read(f"NATS_{key}") for key, read in _NATS_READERS.items() if env.str(f"NATS_{key}", "")}
_SNS_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "REGION": env.str,
    "ENDPOINT": env.str,
    "ACCESS_KEY": _pair,
    "ALLOW_LIST": env.list,
    "DENY_LIST": env.list,
    "SKIP_EVENTS": env.list,
    "IGNORE_LIST": env.list,
    "REFETCH_INTERVAL": _refetch,
}
SALON_JOBS["SNS"] = {key: read(f"SNS_{key}") for key, read in _SNS_READERS.items() if env.str(f"SNS_{key}", "")}
_AZURE_READERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "CONNECTION_STRING": ("AZURE_STORAGE_CONNECTION_STRING", env.str),
    "VISIBILITY_TIMEOUT": ("AZURE_VISIBILITY_TIMEOUT", env.float),
    "PLAIN_QUEUES": ("AZURE_PLAIN_QUEUES", env.list),
}
SALON_JOBS["AZURE"] = {key: read(name) for key, (name, read) in _AZURE_READERS.items() if env.str(name, "")}

# Sources of consume_queue, in JSON: names mapped to SOURCE, TASKS and other keys of the reference.
SALON_JOBS["CONSUMERS"] = env.json("CONSUMERS", {})

# What the demo's child processes inherit: everything but secrets and URLs, of which each gets only its own.
_SECRET_ENDINGS: Final = (
    "_URL",
    "_URL_MIGRATOR",
    "_URL_BOOTSTRAP",
    "_PASSWORD",
    "_DSN",
    "_KEY",
    "_TOKEN",
    "_CONNECTION_STRING",
)
INHERITED_ENVIRONMENT: Final[dict[str, str]] = {
    name: value for name, value in env.ENVIRON.items() if not name.endswith(_SECRET_ENDINGS)
}
