"""Answers /healthz and /readyz from a thread of its own."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django.db import connections

from salon_jobs.core.errors import SalonJobsError
from salon_jobs.core.log_events import logger

_PATIENCE_S = 5


@dataclass(frozen=True, slots=True)
class Readiness:
    """Is one answer: ready or not, with an error code, what is wrong, and facts for whoever reads it."""

    ready: bool
    code: str = ""
    detail: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` (``[::1]:8080`` too). Raises ValueError saying what is expected."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT, such as 127.0.0.1:8080, not {text!r}")
    return host.strip("[]"), int(port)


class HealthServer:
    """Serves liveness (200 while the process lives) and readiness (200, or 503 with an error code)."""

    def __init__(self, address: tuple[str, int], readiness: Callable[[], Readiness]) -> None:
        self._readiness = readiness
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                logger.debug(format, *args)

        self._server = _Server(address, Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="salon-jobs-health", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Return the bound address; tells the port when 0 was asked for."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; returns when stopped. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        path = request.path.partition("?")[0]
        if path == "/healthz":
            self._send(request, 200, {"status": "ok"})
        elif path == "/readyz":
            readiness = self._ask()
            body = {"status": "ready" if readiness.ready else "not ready", **readiness.facts}
            if not readiness.ready:
                body |= {"code": readiness.code, "detail": readiness.detail}
            self._send(request, 200 if readiness.ready else 503, body)
        else:
            self._send(request, 404, {"status": "unknown path", "paths": ["/healthz", "/readyz"]})

    def _ask(self) -> Readiness:
        try:
            return self._readiness()
        except SalonJobsError as error:
            return Readiness(False, error.code, str(error))
        except Exception as error:
            logger.log(logging.ERROR, "readiness could not be told", exc_info=error)
            return Readiness(False, "WORKER.NOT_READY", f"{type(error).__name__}: {error}")
        finally:
            connections.close_all()

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body, default=str).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(content)))
        request.send_header("Cache-Control", "no-store")
        request.end_headers()
        request.wfile.write(content)
