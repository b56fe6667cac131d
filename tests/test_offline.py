"""The network guard of conftest.py works."""

from __future__ import annotations

import os
import socket

import pytest


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.org", 443)])
def test_connection_to_another_machine_is_refused(address: tuple[str, int]) -> None:
    with socket.socket() as outgoing:
        for connect in (outgoing.connect, outgoing.connect_ex):
            with pytest.raises(RuntimeError, match="may not reach the network"):
                connect(address)


def test_datagram_to_another_machine_is_refused() -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as outgoing,
        pytest.raises(RuntimeError, match="may not reach the network"),
    ):
        outgoing.sendto(b"x", ("192.0.2.1", 9))


def test_connection_to_this_machine_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


def test_libraries_are_told_to_stay_offline() -> None:
    assert {os.environ[n] for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")} == {"1"}
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
