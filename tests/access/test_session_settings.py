"""Sets what no session may start with, wherever a session can get it from: doctor and starting processes find it."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from project.local.postgres import EmbeddedPostgres
from salon_jobs.access.doctor.catalogue import Catalogue
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


def drifts_of(connection: psycopg.Connection[Any]) -> set[tuple[str, str]]:
    return {(each.where, each.found) for each in examine(connection, using="default", with_orphans=False).drifts}


def test_what_is_stored_is_found_and_removed(trial: psycopg.Connection[Any]) -> None:
    scopes = ("ROLE ALL", "ROLE app", f"DATABASE {TEST_DATABASE}", f"ROLE app IN DATABASE {TEST_DATABASE}")
    dangerous = [(whose, *each) for whose in scopes for each in (REFUSED | OTHERS | STORED).items()]
    for whose, name, value in dangerous:
        trial.execute(f"ALTER {whose} SET {name} = '{value}'".encode())
    assert drifts_of(trial) == {(whose.lower(), f"{name} = {value}") for whose, name, value in dangerous}
    for each in examine(trial, using="default", with_orphans=False).drifts:
        trial.execute(each.fix[0].encode())
    assert drifts_of(trial) == set()


def test_harmless_values_are_no_drift(trial: psycopg.Connection[Any]) -> None:
    for role, setting in (
        ("app", "row_security = on"),
        ("worker_runtime", "row_security = 'true'"),
        ("jobs_operator", "row_security = 1"),
        ("app", "default_transaction_read_only = NO"),
        ("app", "session_replication_role = 'ORIGIN'"),
    ):
        trial.execute(f"ALTER ROLE {role} SET {setting}".encode())
    assert drifts_of(trial) == set()


def test_the_options_of_a_connection_are_found(database: None) -> None:
    given = {name: value for name, value in REFUSED.items() if name != "session_replication_role"}
    options = " ".join(f"-c {name}={value}" for name, value in given.items())
    with psycopg.connect(url_for("app", TEST_DATABASE), options=options, autocommit=True) as connection:
        assert {found for _, found in drifts_of(connection)} == {f"{name} = {value}" for name, value in given.items()}
        assert [text.partition(" = ")[0] for text in find_refused(Catalogue(connection, using="default"))] == sorted(
            given
        )
