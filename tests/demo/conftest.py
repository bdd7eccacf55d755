"""The demo's rows in the tests' database."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import BaseCommand

from project.demo.verify import Verifier
from project.demo.worker_log import TaskFigures
from project.salon.demo_data import load, make_demo_data
from project.salon.demo_instants import DemoInstants
from tests.settings import url_for

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: None) -> Iterator[Connection]:
    """Connect as the superuser, and drop what a verifier computes."""
    with psycopg.connect(url_for(None), autocommit=True, options="-c timezone=UTC") as connection:
        yield connection
        connection.execute("DROP SCHEMA IF EXISTS demo_before, demo_expected CASCADE")


@pytest.fixture
def demo(connection: Connection, request: pytest.FixtureRequest) -> Connection:
    """Fill the tables with the rows of the module's ``STORES``, and compute the expected result."""
    instants = instants_of(connection)
    load(connection, make_demo_data(instants, stores=request.module.STORES))
    Verifier(connection, instants).prepare(())
    return connection


def instants_of(connection: Connection) -> DemoInstants:
    return DemoInstants.at(connection.execute("SELECT now()").fetchall()[0][0])


def run_in_all_stores(command: BaseCommand, connection: Connection) -> tuple[int, int]:
    """Run a command of the demo; return how many it says it committed, and how many it rolled back."""
    command.stdout = printed = StringIO()  # type: ignore[assignment]
    command.handle(store=[row[0] for row in connection.execute("SELECT id FROM store").fetchall()])
    committed, rolled_back = map(int, printed.getvalue().split())
    return committed, rolled_back


def succeeded(jobs: int) -> TaskFigures:
    """Return the expected figures for that many successful jobs."""
    figures = TaskFigures(jobs=set(range(jobs)))
    figures.outcomes["succeeded"] = jobs
    return figures
