"""Proxy between a process and PostgreSQL that cuts a connection between a commit and its reply, or hangs."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_DONE = b"Z\x00\x00\x00\x05I"  # ReadyForQuery, idle: what ran before it is committed


class SeveringProxy:
    """Proxy that passes bytes on. When armed, the next statement with given words runs, but its reply never arrives."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._server = socket.create_server(("127.0.0.1", 0))
        login = parts.netloc.rpartition("@")[0]
        port = self._server.getsockname()[1]
        self.url = urlunsplit((parts.scheme, f"{login}@127.0.0.1:{port}", parts.path, parts.query, ""))
        self._words = self._reply_words = b""
        self._flowing = threading.Event()
        self._flowing.set()
        self.severed = threading.Event()
        self.accepted = 0

    def arm(self, words: bytes) -> None:
        """Sever the connection over which the next statement with these words is sent."""
        self._words = words

    def arm_reply(self, words: bytes) -> None:
        """Sever the connection over which the next reply with these words would arrive."""
        self._reply_words = words

    def hang(self) -> None:
        """Accept connections and pass nothing on, like a server that is stopped or unreachable."""
        self._flowing.clear()

    def go_on(self) -> None:
        """Pass on what was held back, and everything after it."""
        self._flowing.set()

    def __enter__(self) -> Self:
        """Accept connections."""
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Accept no more."""
        self._flowing.set()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts: it would take others' connections
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            server = socket.create_connection(self._target)
            doomed = threading.Event()
            for work in (self._ask, self._answer):
                threading.Thread(target=work, args=(client, server, doomed), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        try:
            while chunk := client.recv(65536):
                if self._words and self._words in chunk:
                    self._words = b""
                    doomed.set()
                self._flowing.wait()
                server.sendall(chunk)
            server.shutdown(socket.SHUT_WR)
        except OSError:
            server.close()

    def _answer(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        try:
            while chunk := server.recv(65536):
                if self._reply_words and self._reply_words in chunk:
                    self._reply_words = b""
                    doomed.set()
                if not doomed.is_set():
                    client.sendall(chunk)
                elif chunk.endswith(_DONE):
                    break
        except OSError:
            return
        finally:
            for end in (client, server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)  # the other thread waits on them
                end.close()
            if doomed.is_set():
                self.severed.set()
