"""A real primary with a streaming standby: what the harness of the failover tests promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.servers.forwarder import Forwarder
from tests.servers.standby import Replicated, port_of


@pytest.fixture
def replicated() -> Iterator[Replicated]:
    with Replicated() as servers:
        with servers.connect() as connection:
            connection.execute("CREATE TABLE counted (id serial PRIMARY KEY, number int)")
        servers.follow()
        yield servers


def through(servers: Replicated, forwarder: Forwarder) -> psycopg.Connection[Any]:
    url = servers.primary.url.replace(f":{port_of(servers.primary)}/", f":{forwarder.port}/")
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def numbers(servers: Replicated) -> list[int]:
    with servers.connect() as connection:
        return [row[0] for row in connection.execute("SELECT number FROM counted ORDER BY number").fetchall()]


def add(connection: psycopg.Connection[Any], number: int) -> int:
    [(row_id,)] = connection.execute("INSERT INTO counted (number) VALUES (%s) RETURNING id", [number]).fetchall()
    return int(row_id)


def test_what_was_held_back_is_lost_and_its_numbers_are_given_out_again(replicated: Replicated) -> None:
    with closing(through(replicated, replicated.address)) as client:
        add(client, 1)
        replicated.hold_back()
        ids = [add(client, number) for number in range(2, 102)]
        replicated.kill_primary()
        replicated.promote()
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    assert numbers(replicated) == [1]
    with closing(through(replicated, replicated.address)) as client:
        assert add(client, 200) in ids


def test_with_a_synchronous_standby_nothing_is_lost(replicated: Replicated) -> None:
    replicated.synchronous()
    with closing(through(replicated, replicated.address)) as client:
        add(client, 1)
        replicated.kill_primary()
        replicated.promote()
    assert numbers(replicated) == [1]
    replicated.rebuild()
    with replicated.connect() as connection:
        assert connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall() == [("sync",)]
        add(connection, 2)


def test_sockets_that_are_kept_stay_on_the_read_only_server(replicated: Replicated) -> None:
    with closing(through(replicated, replicated.address)) as kept:
        add(kept, 1)
        replicated.make_read_only()
        replicated.promote(cut=False)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            add(kept, 2)
        kept.execute("SELECT 1")
        with closing(through(replicated, replicated.address)) as fresh:
            add(fresh, 3)
    assert numbers(replicated) == [1, 3]


def test_a_frozen_primary_answers_nobody_until_it_is_fenced(replicated: Replicated) -> None:
    with closing(through(replicated, replicated.address)) as kept:
        replicated.freeze_primary()
        replicated.promote(cut=False)
        with closing(through(replicated, replicated.address)) as fresh:
            add(fresh, 3)
        replicated.fence()
        with pytest.raises(psycopg.OperationalError):
            kept.execute("SELECT 1")


def test_the_first_of_two_hosts_may_be_silent(replicated: Replicated) -> None:
    replicated.kill_primary()
    replicated.promote()
    first, second = replicated.hosts
    first.silence()
    url = replicated.primary.url
    password = conninfo_to_dict(url)["password"]
    with psycopg.connect(
        host="127.0.0.1,127.0.0.1",
        port=f"{first.port},{second.port}",
        user="postgres",
        password=password,
        dbname="postgres",
        connect_timeout=2,
        target_session_attrs="read-write",
    ) as connection:
        add(connection, 1)
    first.answer()


def test_a_demoted_server_answers_reads_and_a_rebuilt_one_follows(replicated: Replicated) -> None:
    old = replicated.primary
    replicated.kill_primary()
    replicated.promote()
    old.demote()
    with psycopg.connect(old.url, autocommit=True) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchall() == [(True,)]
    replicated.rebuild()
    with replicated.connect() as connection:
        add(connection, 5)
    replicated.catch_up()
    with psycopg.connect(replicated.standby.url, autocommit=True) as connection:
        assert connection.execute("SELECT number FROM counted").fetchall() == [(5,)]
