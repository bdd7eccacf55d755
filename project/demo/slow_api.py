"""API that takes its time, for the command ``call_slow_api``, and the request that its jobs make."""

from __future__ import annotations

import asyncio
import resource
import threading
from types import TracebackType
from typing import Final, Self

_BACKLOG: Final = 4096
_FILES: Final = 10_000


class SlowApi:
    """HTTP server on a free port of 127.0.0.1, on a thread of its own, which answers each request after a while."""

    def __init__(self, answers_after_s: float) -> None:
        self._answers_after_s = answers_after_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.waiting = self.most_waiting = self.answered = 0

    def __enter__(self) -> Self:
        """Serve from now on."""
        self._thread.start()
        starting = asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=_BACKLOG)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        answering = asyncio.all_tasks() - {asyncio.current_task()}
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(self._answers_after_s)
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
            self.answered += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the job was interrupted
        finally:
            self.waiting -= 1
            writer.close()


def allow_sockets() -> None:
    """Let this process, and those that it starts, have thousands of sockets, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


async def ask(port: int) -> None:
    """Make one request, and wait for the answer. Raises ConnectionError without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        if not (await reader.readline()).startswith(b"HTTP/1.1 204 "):
            raise ConnectionResetError("no answer from the slow API")
    finally:
        writer.close()
