"""SALON_JOBS with right and wrong values; every error names the key."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.test import override_settings

from salon_jobs import conf
from salon_jobs.brokers.broker import brokers
from salon_jobs.brokers.nats.settings import nats_settings as nats
from salon_jobs.checks import check_publishers, check_requests, check_settings
from salon_jobs.conf import Roles, settings
from salon_jobs.core.errors import ConfigurationError


def test_defaults_are_a_plain_queue() -> None:
    with override_settings(SALON_JOBS={}):
        assert settings.store_model is None
        assert settings.roles.one_user
        assert settings.database == "default"
        assert settings.reader_database == "default"
        assert settings.poll_interval == timedelta(seconds=1)
        assert settings.max_attempts == 25
        assert settings.shutdown_grace == timedelta(seconds=30)


def test_secrets_are_not_shown() -> None:
    wanted: dict[str, Any] = {
        "BOOTSTRAP_URL": "postgresql://u:tulip@h/x",
        "LISTEN": "postgresql://u:tulip@h/x",
        "ROLE_PASSWORDS": {"web": "tulip"},
        "NATS": {"USER": ("u", "tulip")},
        "SNS": {"ACCESS_KEY": ("a", "tulip")},
        "AZURE": {"CONNECTION_STRING": "AccountName=a;SharedAccessSignature=tulip"},
    }
    with override_settings(SALON_JOBS=wanted):
        assert nats.user == ("u", "tulip")
        assert "tulip" not in repr(conf._load()), "local variables of an error are shown so"
        for broker in brokers():
            assert "tulip" not in repr(broker.read(wanted.get(broker.section, {})))
    with override_settings(SALON_JOBS={"NATS": {"TOKEN": "tulip"}}):
        assert nats.token == "tulip", "the section is read again"
    for wrong in ("tulip", {"worker": "tulip", "nobody": "tulip"}):
        with override_settings(SALON_JOBS={"ROLE_PASSWORDS": wrong}), pytest.raises(ConfigurationError) as caught:
            _ = settings.database
        assert "tulip" not in str(caught.value)


def test_values_are_converted() -> None:
    wanted: dict[str, Any] = {"POLL_INTERVAL": 0.5, "ROLES": {"web": "site"}, "OPERATOR_DATABASE": "operator"}
    with override_settings(SALON_JOBS=wanted):
        assert settings.poll_interval == timedelta(milliseconds=500)
        assert settings.roles == Roles(web="site")
        assert settings.reader_database == "operator"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "SALON_JOBS must be a dict"),
        ({"POL_INTERVAL": 1}, "unknown key 'POL_INTERVAL'; did you mean 'POLL_INTERVAL'"),
        ({"ZZZ": 1}, "unknown key 'ZZZ'; choose one of .*STORE_MODEL"),
        ({"POLL_INTERVAL": 0}, "POLL_INTERVAL.* more than zero"),
        ({"POLL_INTERVAL": True}, "POLL_INTERVAL"),
        ({"POLL_INTERVAL": float("nan")}, "POLL_INTERVAL.* more than zero, .*not nan"),
        ({"PROCESS_SILENT_AFTER": float("inf")}, "PROCESS_SILENT_AFTER.* more than zero, .*not inf"),
        ({"SHUTDOWN_GRACE": "30"}, "SHUTDOWN_GRACE.* not '30'"),
        ({"SENTRY_MONITORS": 1}, "SENTRY_MONITORS.* True or False"),
        ({"RETAIN_FAILED": 0}, "RETAIN_FAILED.* more than zero, .*or None, not 0"),
        ({"RETAIN_FAILED": "90 days"}, "RETAIN_FAILED.* not '90 days'"),
        ({"RETAIN_SUCCEEDED": timedelta(days=3651)}, "RETAIN_SUCCEEDED.* at most ten years"),
        ({"LISTEN": 5}, "LISTEN.* True, False or a URL, not int$"),
        ({"LISTEN": "postgresql//u:secret@h/x"}, "LISTEN.* True, False or a URL such as postgresql://.*, not str$"),
        ({"LISTEN_URL": "postgresql://h/x"}, "unknown key 'LISTEN_URL'; did you mean 'LISTEN'"),
        ({"BOOTSTRAP_URL": "postgresql://u:secret@[::1/x"}, "BOOTSTRAP_URL.* a URL such as .*, not str$"),
        ({"BOOTSTRAP_URL": ""}, "BOOTSTRAP_URL.* a string that is not empty, or None, not str"),
        ({"OPERATOR_DATABASE": "nowhere"}, "OPERATOR_DATABASE.*'nowhere'.* not in DATABASES"),
        ({"CONCURRENCY": 0}, "CONCURRENCY.* from 1 to"),
        ({"MAX_ATTEMPTS": "3"}, "MAX_ATTEMPTS"),
        ({"TRACING": "maybe"}, "TRACING.* True or False"),
        ({"STORE_MODEL": ""}, "STORE_MODEL"),
        ({"STORE_MODEL": "Store"}, "STORE_MODEL.*app_label.Model"),
        (
            {"REQUEST_STORE": "cookie"},
            "REQUEST_STORE.* membership, header, session, a subdomain such as .*, or the dotted path",
        ),
        ({"REQUEST_STORE": "my app.Resolver"}, "REQUEST_STORE"),
        ({"REQUEST_STORE": "subdomain"}, "REQUEST_STORE.* a subdomain such as"),
        ({"REQUEST_STORE": "*.Salons.example/x"}, "REQUEST_STORE.* a domain in lower case"),
        ({"REQUEST_WITHOUT_STORE": "ignore"}, "REQUEST_WITHOUT_STORE.* one of choose, refuse, continue, not 'ignore'"),
        ({"PATHS_WITHOUT_STORE": ["/admin"]}, "PATHS_WITHOUT_STORE.* begin and end with a slash"),
        ({"PATHS_WITHOUT_STORE": "/admin/"}, "PATHS_WITHOUT_STORE.* a list of strings"),
        ({"MEMBERSHIP_MODEL": "Membership"}, "MEMBERSHIP_MODEL.*app_label.Model"),
        ({"STORE_GUC": "app.current_user_id"}, "STORE_GUC.* another name, .*holds the user's key"),
        ({"STORE_GUC": "nodot"}, "STORE_GUC.* dotted name"),
        ({"STORE_GUC": "app.x'; DROP"}, "STORE_GUC"),
        ({"DATABASE": "nowhere"}, "DATABASE.*'nowhere'.* not in DATABASES"),
        ({"ROLES": ["app"]}, r"SALON_JOBS\['ROLES'\] must be a dict, not list"),
        ({"ROLES": {"webb": "x"}}, r"\['ROLES'\] has an unknown key 'webb'; did you mean 'web'"),
        ({"ROLES": {"web": 1}}, r"\['ROLES'\]\['web'\] must be a plain lower-case role name, not 1"),
        ({"ROLES": {"web": "no good"}}, "a plain lower-case role name, not 'no good'"),
        ({"ROLES": {"web": "worker_runtime"}}, "one role two purposes"),
        ({"BACKOFF": 2}, "BACKOFF"),
        ({"ROLE_PASSWORDS": "secret"}, "ROLE_PASSWORDS"),
        ({"ROLE_PASSWORDS": {"workr": "x"}}, "ROLE_PASSWORDS.*web, worker"),
        ({"ROLE_PASSWORDS": {"web": 5}}, "ROLE_PASSWORDS"),
        ({"ROLES": {"extra_owners": "one"}}, r"\['ROLES'\]\['extra_owners'\] must be a list of plain lower-case"),
        ({"ROLES": {"extra_owners": ["no good"]}}, r"a list of plain lower-case role names, not \['no good'\]"),
        ({"ROLES": {"extra_owners": ["app"]}}, "one role two purposes"),
        ({"STORE_CONCURRENCY": 0}, "STORE_CONCURRENCY.*a whole number from 1 to 1000000, or None, not 0"),
        ({"STORE_CONCURRENCY": "2"}, "STORE_CONCURRENCY"),
        ({"HEARTBEAT_INTERVAL": 10}, "unknown key 'HEARTBEAT_INTERVAL'"),
        # The sections of brokers.
        ({"NATZ": {}}, "SALON_JOBS has an unknown key 'NATZ'; did you mean 'NATS'"),
        ({"AZURE": {"VISIBILITY": 1}}, r"SALON_JOBS\['AZURE'\] has an unknown key 'VISIBILITY'"),
        ({"SNS": 5}, r"SALON_JOBS\['SNS'\] must be a dict, not int"),
    ],
)
def test_wrong_value_names_its_key(wrong: object, message: str) -> None:
    with override_settings(SALON_JOBS=wrong):
        with pytest.raises(ConfigurationError, match=message):
            _ = settings.database
        [error] = check_settings()
        assert error.id == "salon_jobs.E001"
        assert error.hint


def test_all_faults_are_named_at_once() -> None:
    wrong = {"ROLES": {"webb": "x", 1: "y"}, "CONCURENCY": 8, "SNS": {"REGION": 5}, "OUTBOX": {"RETRY_COUNT": 0}}
    with override_settings(SALON_JOBS=wrong):
        errors = check_settings()
        with pytest.raises(ConfigurationError) as caught:
            _ = settings.database
    assert str(caught.value).splitlines() == [error.msg for error in errors]
    assert [error.msg.partition(";")[0] for error in errors] == [
        "SALON_JOBS['ROLES'] has an unknown key 'webb'",
        "SALON_JOBS['ROLES'] has an unknown key 1",
        "SALON_JOBS has an unknown key 'CONCURENCY'",
        "SALON_JOBS['SNS']['REGION'] must be a region such as 'ap-northeast-1', not 5",
        "SALON_JOBS['OUTBOX']['RETRY_COUNT'] must be a whole number from 1 to 1000, not 0",
    ]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ({"LOGGING": {"LEVEL": "loud"}}, "correct SALON_JOBS['LOGGING']['LEVEL']; Settings in the documentation"),
        ({"NATS": {"USER": ("u", "p"), "TOKEN": "t"}}, "correct SALON_JOBS['NATS']; Settings in the documentation"),
        ({"HEARTBEAT_INTERVAL": 3}, "rename or remove the key; Settings in the documentation lists all"),
    ],
)
def test_hint_names_field_and_remedy(wrong: object, hint: str) -> None:
    with override_settings(SALON_JOBS=wrong):
        [error] = check_settings()
        assert error.hint
        assert error.hint.startswith(hint)


def test_rates_of_unknown_services_are_refused() -> None:
    rates = {"sms": 5, "nats": 5, "rn::pigeon:::a": 1, "rn::nats:::a": 1}
    with override_settings(SALON_JOBS={"OUTBOX": {"THROUGHPUT": rates}}):
        found = check_publishers()
    assert [error.id for error in found] == ["salon_jobs.E053"] * 2
    assert found[0].msg == "SALON_JOBS['OUTBOX']['THROUGHPUT']['sms']: the service 'sms' has no publisher"
    assert found[0].hint == "name one of azurequeue, jobs, memory, nats, sns, or one of their destinations"


@pytest.fixture
def dated() -> Iterator[None]:
    """Have a model whose key no store can have."""

    class Dated(models.Model):
        day = models.DateField(primary_key=True)

        class Meta:
            app_label = "salon"

        def __str__(self) -> str:
            return str(self.day)

    yield
    del apps.all_models["salon"]["dated"]
    apps.clear_cache()


@pytest.mark.parametrize(
    ("wrong", "identity", "said", "remedy"),
    [
        ("nowhere.Store", "salon_jobs.E004", "'nowhere.Store' does not exist", "'app_label.Model'"),
        ("salon.Dated", "salon_jobs.E005", "no store can have a key", "UUIDs, whole numbers or text"),
        ("auth.Group", "salon_jobs.E007", "annotates store_id with another type", "write store_id: int, as auth.Group"),
    ],
)
@pytest.mark.usefixtures("dated")
def test_wrong_store_model(wrong: str, identity: str, said: str, remedy: str) -> None:
    with override_settings(SALON_JOBS={"STORE_MODEL": wrong}):
        error, *others = check_settings()
    assert {other.id for other in others} <= {identity}
    assert error.id == identity
    assert said in error.msg
    assert remedy in (error.hint or "")


def test_pgtrigger_must_be_installed() -> None:
    without = override_settings(INSTALLED_APPS=[app for app in django_settings.INSTALLED_APPS if app != "pgtrigger"])
    with pytest.raises(ImproperlyConfigured, match="add 'pgtrigger' to INSTALLED_APPS"), without:
        pass


@pytest.mark.parametrize(
    ("move", "options", "expected"),
    [
        ("stay", {}, []),
        ("first", {}, ["salon_jobs.E031"]),
        ("away", {}, ["salon_jobs.W030"]),
        ("away", {"MEMBERSHIP_MODEL": None}, []),
        ("stay", {"MEMBERSHIP_MODEL": None}, ["salon_jobs.E030"]),
        ("stay", {"REQUEST_STORE": "tests.conf.nowhere.Resolver"}, ["salon_jobs.E030"]),
        ("stay", {"REQUEST_STORE": "builtins.object"}, ["salon_jobs.E030"]),
        ("first", {"REQUEST_STORE": "salon_jobs.tenancy.resolvers.HeaderResolver"}, []),
    ],
)
def test_middleware_is_checked(move: str, options: dict[str, Any], expected: list[str]) -> None:
    ours = "salon_jobs.tenancy.request.TenantMiddleware"
    others = [path for path in django_settings.MIDDLEWARE if path != ours]
    moved = {"stay": django_settings.MIDDLEWARE, "first": [ours, *others], "away": others}[move]
    with override_settings(MIDDLEWARE=moved, SALON_JOBS={**django_settings.SALON_JOBS, **options}):
        assert [message.id for message in check_requests()] == expected


# The outbox

TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
SNS = {"REGION": "eu-west-1"}


def outbox_of(*, sns: dict[str, Any] | None = None, **given: Any) -> Any:
    with override_settings(SALON_JOBS={"OUTBOX": given, "SNS": sns or {}}):
        return settings.outbox


def test_defaults_of_outbox() -> None:
    outbox = outbox_of()
    assert (outbox.poll_interval, outbox.retry_backoff) == (timedelta(seconds=5), timedelta(seconds=20))
    assert (outbox.retry_count, outbox.throughput, outbox.fetch_limit) == (10, {"*": 3000}, 1000)
    assert outbox.producer is None


def test_rate_of_destination_service_or_all() -> None:
    outbox = outbox_of(THROUGHPUT={"*": 7, "nats": None, "rn::nats:::slow": 1})
    assert outbox.rate_of("rn::nats:::slow") == 1
    assert outbox.rate_of("rn::nats:::orders") is None
    assert outbox.rate_of(TOPIC) == 7


@pytest.mark.parametrize("wrong", [0, ["nats"], "7"])
def test_throughput_that_is_no_rate(wrong: Any) -> None:
    message = r"\['THROUGHPUT'\] must be a whole number from 1 to 10000000, or None, or a dict of services"
    with pytest.raises(ConfigurationError, match=message):
        outbox_of(THROUGHPUT=wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"nats": 1, "SNS": 3001}, r"\['SNS'\]: the key must be .*lower case"),
        ({"nats": 0}, r"\['nats'\] must be a whole number"),
        ({5: 5}, r"\[5\]: the key must be"),
        ({"orders": "many"}, r"\['orders'\] must be a whole number from 1 to 10000000, or None, not 'many'"),
        ({"rn:nats": 5}, r"\['rn:nats'\]: the key must be"),
    ],
)
def test_wrong_rate_is_named(wrong: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\['OUTBOX'\]\['THROUGHPUT'\]" + named):
        outbox_of(THROUGHPUT=wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"THROUGHPUT": {"sns": 3001}}, r"\['THROUGHPUT'\]\['sns'\] must be at most 3000.* not 3001"),
        ({"THROUGHPUT": {"sns": None}}, r"\['THROUGHPUT'\]\['sns'\] must be at most 3000.* not None"),
        ({"THROUGHPUT": {"nats": None, TOPIC: 10_000}}, rf"\['THROUGHPUT'\]\['{TOPIC}'\] must be at most 3000"),
        ({"THROUGHPUT": {"rn::sns:::a": None}}, r"\['THROUGHPUT'\]\['rn::sns:::a'\] must be at most 3000"),
        ({"THROUGHPUT": 3001, "sns": SNS}, r"\['THROUGHPUT'\] is 3001.*write {'\*': 3001, 'sns': 3000}, or less"),
        ({"THROUGHPUT": None, "sns": SNS}, r"\['THROUGHPUT'\] is None.*write {'\*': None, 'sns': 3000}, or less"),
        # One topic has a rate; the others of SNS would have none.
        ({"THROUGHPUT": {"*": None, TOPIC: 10}}, r"\['THROUGHPUT'\] is None"),
    ],
)
def test_rate_above_limit_of_sns(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"SALON_JOBS\['OUTBOX'\]{named}"):
        outbox_of(**wrong)


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ({}, (3000, 3000)),
        ({"THROUGHPUT": 50, "sns": SNS}, (50, 50)),
        ({"THROUGHPUT": None}, (None, 3000)),
        ({"THROUGHPUT": 9000}, (9000, 3000)),
        ({"THROUGHPUT": {"*": None, "sns": 3000}, "sns": SNS}, (None, 3000)),
        ({"THROUGHPUT": {"*": None, "sns": 3000, TOPIC: 10}}, (None, 10)),
        ({"THROUGHPUT": {"nats": None}, "sns": SNS}, (None, 3000)),
    ],
)
def test_rates_beside_sns(given: dict[str, Any], rates: tuple[int | None, int]) -> None:
    """Other services lift the rate, and SNS never has more."""
    outbox = outbox_of(**given)
    assert (outbox.rate_of("rn::nats:::orders"), outbox.rate_of(TOPIC)) == rates
