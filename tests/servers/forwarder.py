"""Proxy that can be cut, for a server that forgets everything when it ends."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Forwarder:
    """TCP proxy on one port, which it keeps while it is cut."""

    def __init__(self, target_port: int) -> None:
        self._target = ("127.0.0.1", target_port)
        self._server: socket.socket | None = None
        self._ends: set[socket.socket] = set()
        self._guard = threading.Lock()
        # While it is held, nothing is passed on.
        self.held = threading.Lock()
        self.port = 0

    def open(self) -> None:
        """Accept connections. Idempotent."""
        if self._server is not None:
            return
        self._server = socket.create_server(("127.0.0.1", self.port))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        """Refuse connections, and break the open ones. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        _end(server)  # wakes the thread that accepts
        with self._guard:
            ends, self._ends = self._ends, set()
        for end in ends:
            _end(end)

    def _accept(self, server: socket.socket) -> None:
        while self._server is server:
            try:
                client, _ = server.accept()
            except OSError:
                return
            target = socket.create_connection(self._target)
            with self._guard:
                if self._server is not server:
                    _end(client)
                    _end(target)
                    return
                self._ends |= {client, target}
            for source, sink in ((client, target), (target, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                with self.held:
                    sink.sendall(chunk)
        with self._guard:
            self._ends -= {source, sink}
        _end(source)
        _end(sink)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
