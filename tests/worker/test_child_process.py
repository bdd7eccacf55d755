"""What children print arrives in whole lines, whatever becomes of writer and reader."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from salon_jobs.worker.child import ControlChannel
from salon_jobs.worker.child_process import relay_lines
from tests.waiting import LIMIT_S


def relayed(*chunks: bytes) -> None:
    """Write to a pipe while it is relayed, and close it."""
    source, sink = os.pipe()
    relay = threading.Thread(target=relay_lines, args=(source,))
    relay.start()
    for chunk in chunks:
        os.write(sink, chunk)
    os.close(sink)
    relay.join(LIMIT_S)
    assert not relay.is_alive()
    os.close(source)


def test_lines_arrive_whole(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    long = b"x" * 200_000
    relayed(b"one\ntw", b"o\n", long, b"\nthr")
    assert capsysbinary.readouterr().out == b"one\ntwo\n" + long + b"\nthr\n"


def test_lines_of_children_do_not_mix(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = [name * 3000 + b"\n" for name in (b"a", b"b")]
    # Each chunk ends in the middle of a line.
    chunks = [(line * 200)[at : at + 7777] for line in lines for at in range(0, 200 * 3001, 7777)]
    half = len(chunks) // 2
    threads = [threading.Thread(target=relayed, args=some) for some in (chunks[:half], chunks[half:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = capsysbinary.readouterr().out.splitlines(keepends=True)
    assert sorted(found) == sorted(lines * 200)


def test_unread_log_delays_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=SimpleNamespace(write=refuse)))
    relayed(*[b"line\n" * 10_000] * 10)


def test_output_that_takes_text(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    relayed("größer\n".encode(), b"\xff\n")
    assert out.getvalue() == "größer\n\ufffd\n"


def test_cut_off_message_is_dropped() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"facts": {}}\n{"fau')
        theirs.close()
        link = ControlChannel(ours)
        assert list(link.received()) == [{"facts": {}}]
        link.send(stop=True)  # to nobody
