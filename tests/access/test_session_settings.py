"""Sets what no session may start with, wherever a session can get it from: doctor and starting processes find it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from project.local.postgres import EmbeddedPostgres
from salon_jobs.access.doctor.catalogue import Catalogue, as_superuser
from salon_jobs.access.doctor.declaration import Declaration
from salon_jobs.access.doctor.examination import examine
from salon_jobs.access.doctor.session_settings import compare_settings, find_refused
from tests.settings import TEST_DATABASE, url_for

REFUSED: Final = {
    "app.current_store_id": "00000000-0000-0000-0000-000000000001",
    "app.current_user_id": "1",
    "pgtrigger.ignore": "{public.salon_jobs_job:x}",
    "row_security": "off",
    "salon_jobs.no_store": "x",
    "session_replication_role": "replica",
    "standard_conforming_strings": "off",
}
OTHERS: Final = {"default_transaction_read_only": "on", "search_path": "elsewhere"}
# What is a drift only where it is stored.
STORED: Final = {
    "role": "migrator",
    "session_authorization": "migrator",
    "local_preload_libraries": "auto_explain",
    "session_preload_libraries": "auto_explain",
    "dynamic_library_path": "/tmp",
}
NOTHING: Final = Declaration(roles=None, named=(), owner="nobody", tables=())


@pytest.fixture
def superuser(database: None) -> Iterator[psycopg.Connection[Any]]:
    with as_superuser(using="default") as connection, connection.transaction(force_rollback=True):
        yield connection


def test_the_servers_configuration_and_command_line_are_found() -> None:
    with (
        EmbeddedPostgres(fsync=False, options=REFUSED | OTHERS) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        catalogue = Catalogue(connection, using="default")
        drifts = list(compare_settings(catalogue, NOTHING))
        assert {each.expected.removeprefix("no ") for each in drifts} == {*REFUSED, *OTHERS}
        assert {each.where for each in drifts} == {"server"}
        assert [text.partition(" = ")[0] for text in find_refused(catalogue)] == sorted(REFUSED)


@pytest.mark.parametrize(
    "whose", ["ROLE ALL", "ROLE app", f"DATABASE {TEST_DATABASE}", f"ROLE app IN DATABASE {TEST_DATABASE}"]
)
def test_what_is_stored_is_found_and_removed(superuser: psycopg.Connection[Any], whose: str) -> None:
    dangerous = REFUSED | OTHERS | STORED
    for name, value in dangerous.items():
        superuser.execute(f"ALTER {whose} SET {name} = '{value}'".encode())
    drifts = examine(superuser, using="default", with_orphans=False).drifts
    assert {(each.where, each.found) for each in drifts} == {
        (whose.lower(), f"{name} = {value}") for name, value in dangerous.items()
    }
    for each in drifts:
        superuser.execute(each.fix[0].encode())
    assert examine(superuser, using="default", with_orphans=False).drifts == ()


@pytest.mark.parametrize(
    "setting",
    [
        "row_security = on",
        "row_security = 'true'",
        "row_security = 1",
        "default_transaction_read_only = NO",
        "session_replication_role = 'ORIGIN'",
    ],
)
def test_a_harmless_value_is_no_drift(superuser: psycopg.Connection[Any], setting: str) -> None:
    superuser.execute(f"ALTER ROLE app SET {setting}".encode())
    assert examine(superuser, using="default", with_orphans=False).drifts == ()


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "session_replication_role"])
def test_the_options_of_a_connection_are_found(database: None, name: str) -> None:
    with psycopg.connect(
        url_for("app", TEST_DATABASE), options=f"-c {name}={REFUSED[name]}", autocommit=True
    ) as connection:
        drifts = examine(connection, using="default", with_orphans=False).drifts
        assert [each.found for each in drifts] == [f"{name} = {REFUSED[name]}"]
        assert find_refused(Catalogue(connection, using="default"))
