"""Words for the service manager that started this program (sd_notify of systemd)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(text: str) -> None:
    """Tell the service manager ``text``, such as ``READY=1``. Without one nothing happens."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(text.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
