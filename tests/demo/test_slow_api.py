"""The demo's command that lets jobs wait for an API shows how many wait at once, and ends when all have ended."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management import call_command
from django.db import connections

from project.demo.management.commands.call_slow_api import Command
from project.demo.slow_api import SlowApi, ask
from salon_jobs.worker.async_handlers import run_coroutine
from tests.support import working


def test_jobs_wait_for_it_at_once(process_id: int, capsys: pytest.CaptureFixture[str]) -> None:
    def call() -> None:
        try:
            call_command(Command(), jobs=20, seconds=0.3)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads, working(process_id):
        threads.submit(call).result()
    printed = capsys.readouterr().out
    assert "20 jobs, 20 answers after 0.3 s each" in printed
    [waited] = re.findall(r"At most (\d+) waited at once", printed)
    assert int(waited) > 1


def test_a_request_without_an_answer_is_an_error() -> None:
    with SlowApi(60) as api:
        port = api.port
    with pytest.raises(ConnectionRefusedError):
        run_coroutine(ask(port))
