"""Demo of the whole job flow: run it on real data and verify the result."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from rich.console import Console

from project.demo.processes import DemoFailed
from project.demo.serve import create, serve
from project.demo.server import demo_server
from project.demo.steps import run_demo
from project.local.postgres_install import ServerFailed


def main() -> int:
    """Return 0 when everything was verified, 1 when a verification failed, 2 when the demo could not run."""
    parser = argparse.ArgumentParser(prog="python -m project.demo", description=__doc__)
    parser.add_argument(
        "--serve", action="store_true", help="run everything to look at, on the last run's data if kept"
    )
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    console = Console(highlight=False)
    try:
        with demo_server() as server:
            if arguments.serve and (finished := server.finished_database()):
                serve(console, finished)
                return 0
            with server.database() as database:
                if arguments.serve:
                    console.print("Creating the database of 100 stores …")
                    create(database)
                    database.mark_finished()
                    serve(console, database)
                    return 0
                verified = run_demo(console, database)
                database.mark_finished()
                return 0 if verified else 1
    except (DemoFailed, ServerFailed) as error:
        console.print(f"[bold red]The demo could not run:[/] {error}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130


def _leave(number: int, _frame: FrameType | None) -> None:
    """Turn a signal into a normal exit, so that every child process is ended."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
