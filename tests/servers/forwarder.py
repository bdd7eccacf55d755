"""TCP proxy between clients and a server: an address that can be cut, move, or fall silent."""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from contextlib import suppress
from typing import Final

_SO_ATTACH_FILTER: Final = 26


class Forwarder:
    """TCP proxy on one port, which it keeps while it is cut.

    New connections go to ``target_port``; after it was changed, open ones stay where they are.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self._server: socket.socket | None = None
        self._ends: set[socket.socket] = set()
        self._guard = threading.Lock()
        # While it is held, nothing is passed on.
        self.held = threading.Lock()
        self._silent = False
        self.port = 0

    def open(self) -> None:
        """Accept connections. Idempotent."""
        if self._server is not None:
            return
        self._server = socket.create_server(("127.0.0.1", self.port))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def cut(self) -> None:
        """Refuse connections, and break the open ones; what was held back is lost. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            _end(server)  # wakes the thread that accepts
        self.break_open()

    def break_open(self) -> None:
        """Break the open connections, and go on accepting new ones."""
        with self._guard:
            ends, self._ends = self._ends, set()
        for end in ends:
            _end(end)

    def silence(self) -> None:
        """Answer nothing more, on open and on new connections, as a host that is frozen or gone."""
        self._silent = True
        self.held.acquire()

    def answer(self) -> None:
        """End the silence; break the connections that were open, since what they sent may be lost."""
        self._silent = False
        self.break_open()
        self.held.release()

    def lose_packets(self) -> None:
        """Leave what arrives on open connections unacknowledged, as a network that is gone does; new ones work.

        Our kernel drops the packets by a filter that accepts nothing (Linux).
        """
        accept_nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
        program = struct.pack("HP", 1, ctypes.addressof(accept_nothing))
        with self._guard:
            for end in self._ends:
                end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _accept(self, server: socket.socket) -> None:
        while self._server is server:
            try:
                client, _ = server.accept()
            except OSError:
                return
            if self._silent:
                with self._guard:
                    self._ends.add(client)
                continue
            try:
                target = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:  # nobody listens there, as on a host whose server is down
                _end(client)
                continue
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
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while chunk := source.recv(65536):
                with self.held:
                    pass  # not during the send: a connection that nobody reads would hold up all others
                sink.sendall(chunk)
        with self._guard:
            self._ends -= {source, sink}
        _end(source)
        _end(sink)


def _end(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
