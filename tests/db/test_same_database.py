"""Shows which aliases lead to the database of the jobs, whatever their settings say."""

from __future__ import annotations

import pytest
from django.db import OperationalError, connections
from django.db.utils import ConnectionHandler

from salon_jobs.core.errors import BootstrapMissing
from salon_jobs.db.connections import holds_job_tables
from salon_jobs.process.preflight import require_roles
from tests.databases import spare_database
from tests.settings import TEST_DATABASE


@pytest.fixture
def direct(database: None, monkeypatch: pytest.MonkeyPatch) -> ConnectionHandler:
    """Provide the alias ``web`` by another name of its host."""
    monkeypatch.setitem(connections["web"].settings_dict, "HOST", "localhost")
    return connections


def test_other_host_can_be_the_same(direct: ConnectionHandler) -> None:
    assert holds_job_tables("web")
    with spare_database(copied=True) as name:
        direct["web"].settings_dict["NAME"] = name
        try:
            assert not holds_job_tables("web")
            direct["web"].creation.set_as_test_mirror(direct["default"].settings_dict)
            assert direct["web"].settings_dict["NAME"] == TEST_DATABASE
            assert holds_job_tables("web"), "TEST MIRROR"
        finally:
            direct["web"].settings_dict["NAME"] = TEST_DATABASE


def test_asking_needs_no_transaction_of_the_alias(direct: ConnectionHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(direct["web"].settings_dict, "HOST", "LOCALHOST")
    with direct["default"].execute_wrapper(_refuse), direct["web"].execute_wrapper(_refuse):
        assert holds_job_tables("web")


def test_alias_without_a_server_is_unknown(direct: ConnectionHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(direct["web"].settings_dict, "PORT", "1")
    with pytest.raises(OperationalError):
        holds_job_tables("web")


def test_roles_are_required_by_each_alias(direct: ConnectionHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("salon_jobs.conf.schema.Roles.names", property(lambda _: ("nobody_has_it",)))
    for alias in ("default", "web"):
        with pytest.raises(BootstrapMissing, match="database roles are missing: nobody_has_it"):
            require_roles(using=alias)


def _refuse(*_: object) -> None:
    raise AssertionError
