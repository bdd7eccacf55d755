"""HTTP server for /healthz, /readyz and /metrics, in its own thread."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from salon_jobs.core.error_report import message_of
from salon_jobs.core.errors import ConfigurationError, NotReady, SalonJobsError
from salon_jobs.core.events import logger
from salon_jobs.core.metrics import Sample
from salon_jobs.core.text import short_repr
from salon_jobs.core.vital import exits_on_error
from salon_jobs.process.exposition import exposition

# How long a client may take to send its request line and headers, and for all of it, the response included.
_REQUEST_S = 2.0
_LONGEST_S = 15.0
# Requests at a time: more than probes and scrapers need, but few enough that a flood or slow clients take few threads.
_MOST = 32
# An answer takes two seconds at most; a client that has not received it after this time loses its place.
_ANSWER_S = 3.0


class _Server(ThreadingHTTPServer):
    """Server of at most ``_MOST`` requests at a time.

    When all places are taken, the oldest request is dropped for a new one: first requests without complete headers, so
    that slow clients never keep a probe out.
    """

    daemon_threads = True
    # Connections that the kernel accepts while all places are being cleared.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        # In order of arrival. Both are only read and written under the lock.
        self._reading: dict[Any, float] = {}
        self._answering: dict[Any, float] = {}
        self._changing = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            is_full = len(self._reading) + len(self._answering) >= _MOST
            if is_full and not (self._hang_up(self._reading, 0.0) or self._hang_up(self._answering, _ANSWER_S)):
                super().shutdown_request(request)
                return
            self._reading[request] = time.monotonic()
        super().process_request(request, client_address)

    def begin_answer(self, request: Any) -> None:
        """Record that the request has been read."""
        with self._changing:
            if (since := self._reading.pop(request, None)) is not None:
                self._answering[request] = since

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._reading.pop(request, None)
            self._answering.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on requests that take too long. Called before each request, and several times a second."""
        with self._changing:
            while self._hang_up(self._reading, _REQUEST_S) or self._hang_up(self._answering, _LONGEST_S):
                pass

    @staticmethod
    def _hang_up(requests: dict[Any, float], older_than_s: float) -> bool:
        """Hang up on the oldest of these requests if it is that old; its thread notices. Return whether it was."""
        request, since = next(iter(requests.items()), (None, float("inf")))
        if request is None or time.monotonic() - since < older_than_s:
            return False
        del requests[request]
        with suppress(OSError):  # already closed
            request.shutdown(socket.SHUT_RDWR)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error in one request, unless the client hung up."""
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, ConnectionError) else logging.ERROR
        logger.log(level, "a health request from %s failed", client_address, exc_info=error)


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` (``[::1]:8080`` too). Raises ValueError naming the expected form."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected HOST:PORT, such as 127.0.0.1:8080, not {short_repr(text)}")
    return host.strip("[]"), int(port)


class HealthServer:
    """Server for liveness (200 while the process lives), readiness (200, or 503 with an error code) and metrics.

    ``readiness`` returns facts for the response, or raises SalonJobsError with the code of the response. Metrics are
    200, or 501 without prometheus-client.
    """

    def __init__(
        self,
        address: tuple[str, int],
        readiness: Callable[[], dict[str, object]],
        samples: Callable[[], Iterable[Sample]] = tuple,
    ) -> None:
        """Bind the address. Raises NotReady when it is in use or does not belong to this machine."""
        self._readiness = readiness
        self._samples = samples
        server = self

        class Handler(BaseHTTPRequestHandler):
            # Of one read; the server bounds the sum of them.
            timeout = _REQUEST_S

            def do_GET(self) -> None:
                self.connection.settimeout(_LONGEST_S)
                server.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                logger.debug(format, *args)

        try:
            self._server = _Server(address, Handler)
        except (OSError, UnicodeError) as error:
            raise NotReady(
                f"cannot listen on {address[0]}:{address[1]} for health: {error}; name another address with"
                " --health-addr HOST:PORT (port 0 takes a free one)"
            ) from error
        self._thread = threading.Thread(
            target=exits_on_error(self._server.serve_forever), name="salon-jobs-health", daemon=True
        )

    @property
    def address(self) -> tuple[str, int]:
        """The bound address, with the actual port when 0 was requested."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; returns when stopped. Idempotent."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self._server.begin_answer(request.connection)
        path = request.path.partition("?")[0]
        if path == "/healthz":
            self._send(request, 200, {"status": "ok"})
        elif path == "/readyz":
            self._send(request, *self._ask())
        elif path == "/metrics":
            try:
                content, content_type = exposition(self._samples(), accept=request.headers.get("Accept", ""))
            except ConfigurationError as error:
                self._send(request, 501, {"status": "no metrics", "code": error.code, "detail": str(error)})
            else:
                self._send_content(request, 200, content, content_type)
        else:
            self._send(request, 404, {"status": "unknown path", "paths": ["/healthz", "/readyz", "/metrics"]})

    def _ask(self) -> tuple[int, dict[str, object]]:
        try:
            return 200, {"status": "ready", **self._readiness()}
        except SalonJobsError as error:
            return 503, {"status": "not ready", "code": error.code, "detail": message_of(error)}
        except Exception as error:  # its text may hold anything, even data of a store, and anybody may ask
            logger.log(logging.ERROR, "readiness could not be computed", exc_info=error)
            detail = f"{type(error).__name__}; the log says more"
            return 503, {"status": "not ready", "code": NotReady.code, "detail": detail}

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: dict[str, object]) -> None:
        self._send_content(request, status, json.dumps(body, default=str).encode(), "application/json")

    def _send_content(self, request: BaseHTTPRequestHandler, status: int, content: bytes, content_type: str) -> None:
        request.send_response(status)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(content)))
        request.send_header("Cache-Control", "no-store")
        request.end_headers()
        request.wfile.write(content)
