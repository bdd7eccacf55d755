"""Sentry server that keeps the envelopes it receives, for clients with a real transport."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sentry_sdk.envelope import Envelope


class SentryServer:
    """Server on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        kept = self._events

        class Receive(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                event: Any = Envelope.deserialize(body).get_event()
                if event is not None:
                    kept.append(event)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
                """Write nothing to the output of the tests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"

    def named(self, *events: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("tags", {}).get("log_event") in events]

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self._events)

    @contextmanager
    def serving(self) -> Generator[None]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
