"""Program that answers requests on one kept connection and prints what the last one finds of what connecting set.

Its words: whether salon_jobs is installed (or nothing but Django), and how many requests to answer. It prints JSON: the
round trips since the connection was made, the session, and the functions of salon_jobs that ran after the first
request.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import django
import environ
from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.core.signals import request_started
from django.db import connection
from django.db.backends.signals import connection_created
from django.http import HttpRequest, JsonResponse
from django.test import RequestFactory
from django.urls import path

_SESSION = """
    SELECT current_setting('app.region', true), current_setting('work_mem'),
           (SELECT count(*) FROM pg_prepared_statements WHERE name = 'at_connect'),
           (SELECT array_agg(pg_listening_channels)::text FROM pg_listening_channels()),
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""
_trace = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process


def _set_at_connect(connection: Any, **_: object) -> None:
    raw = connection.connection
    raw.execute("SET app.region = 'eu'; SET work_mem = '5MB'; LISTEN at_connect; PREPARE at_connect AS SELECT 1")
    raw.execute("SELECT pg_advisory_lock(4711)")
    raw.pgconn.trace(_trace.fileno())


def _view(_request: HttpRequest) -> JsonResponse:
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)
        return JsonResponse({"session": cursor.fetchone()})


urlpatterns = [path("", _view)]


def _main(installed: str, count: str) -> None:
    connection_created.connect(_set_at_connect)
    settings.configure(
        DATABASES={"default": {**environ.Env().db_url("SITE_URL"), "CONN_MAX_AGE": 600}},
        INSTALLED_APPS=["pgtrigger", "salon_jobs"] if installed == "salon_jobs" else [],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
    )
    django.setup()
    handler, request = BaseHandler(), RequestFactory().get("/")
    handler.load_middleware()
    ran: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "salon_jobs" in Path(frame.f_code.co_filename).parts:
            ran.append(frame.f_code.co_qualname)

    answer: Any = None
    for _ in range(int(count)):
        request_started.send(sender=None)
        answer = handler.get_response(request)
        answer.close()  # ends the request
        sys.setprofile(note)
    sys.setprofile(None)
    connection.connection.pgconn.untrace()
    _trace.seek(0)
    trips = _trace.read().count(b"ReadyForQuery")
    print(json.dumps({"trips": trips, "ran": ran, **json.loads(answer.content)}))  # noqa: T201


if __name__ == "__main__":
    _main(*sys.argv[1:])
