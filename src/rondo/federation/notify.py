"""Words of a program that runs for days: lines in its log, and for the service manager that started it (sd_notify of
systemd)."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress
from datetime import datetime

from rondo.errors import visible


def notify(text: str) -> None:
    """Tell the service manager ``text``, such as ``READY=1``. Without one nothing happens."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(text.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


class Log:
    """Lines on standard error. Called with a line, it tells the service manager too, and goes on where nobody can read
    it: the terminal is gone, or the log's disk is full.

    ``as_json``: each line is an object with ``time`` and ``message``. Else it begins with its time, except in a
    terminal and in systemd's journal, which has its own.
    """

    def __init__(self, as_json: bool = False) -> None:
        self._as_json = as_json

    def __call__(self, line: str) -> None:
        with suppress(OSError):
            self.write(f"{visible(line)}\n")
        notify(f"STATUS={visible(line)}")

    @property
    def is_plain(self) -> bool:
        """Whether lines are written as they come."""
        return not self._as_json and (sys.stderr.isatty() or _in_journal())

    def write(self, text: str) -> int:
        """Write whole lines. Raises OSError."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        for line in text.splitlines():
            told = f"{now} {line}"
            if self._as_json:
                told = json.dumps({"time": now, "message": line}, ensure_ascii=False)
            sys.stderr.write(f"{line if self.is_plain else told}\n")
        self.flush()
        return len(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _in_journal() -> bool:
    """Whether standard error is systemd's journal."""
    with suppress(OSError, ValueError):
        there = os.fstat(sys.stderr.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{there.st_dev}:{there.st_ino}"
    return False
