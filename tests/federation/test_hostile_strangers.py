"""A SuperLink and whoever reaches its port: nothing of theirs is read before their key is known."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from flwr.proto import fab_pb2, fleet_pb2, message_pb2, run_pb2
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from intruder import PROTOBUF, Intruder, Line

from rondo.federation.identity.roster import Roster
from rondo.federation.server.line import fleet

USED = {
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-object",
    "pull-object",
}  # fmt: skip


@pytest.fixture
def link(link: Line) -> Iterator[Line]:
    """With the roster as it was made."""
    roster = link.roster[0]
    yield link
    link.roster[0] = roster


def still_serves(link: Line) -> bool:
    return link.site("north").connect().status_code == 200


def with_site(link: Line, name: str, **changes: object) -> Roster:
    return Roster(tuple(replace(s, **changes) if s.name == name else s for s in link.roster[0].sites))  # type: ignore[arg-type]


def tls(link: Line) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(link.folder / "server" / "ca.crt"))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", link.link.port), 20), server_hostname="localhost")


# --- who is asked in ----------------------------------------------------------------------------------------------


def test_unknown_key_is_turned_away_at_every_route(link: Line) -> None:
    for route in USED:
        answer = link.stranger().post(route, b"")
        assert answer.status_code == 403, route
        assert answer.json()["detail"] == "this key is not in the server's roster"


def test_no_signature(link: Line) -> None:
    site = link.site("north")
    for missing in site.signed():
        headers = {k: v for k, v in site.signed().items() if k != missing}
        assert site.post("pull-messages", b"", headers).status_code == 401, missing
    others = {"key": "%%", "signature": "aGFsbG8=", "time": "yesterday", "program": "mine", "digest": "0" * 63 + "G"}
    for key, value in ((f"rondo-{name}", value) for name, value in others.items()):
        assert site.post("pull-messages", b"", {**site.signed(), key: value}).status_code == 401, key


def test_signature_of_another_key(link: Line) -> None:
    north, south = link.site("north"), link.site("south")
    stolen = {**north.signed(), "rondo-key": south.signed()["rondo-key"]}
    assert north.post("pull-messages", b"", stolen).status_code == 401


def test_signature_is_of_one_request(link: Line) -> None:
    """Whoever sees a signature can send it again, for minutes, but not with another request."""
    site = link.site("north")
    site.connect()
    body = fleet_pb2.PullMessagesRequest(node=site.node).SerializeToString()
    signed = site.signed("pull-messages", body)
    assert site.post("pull-messages", body, signed).status_code == 200
    for changed in (
        {"rondo-program": "a" * 32},
        {"rondo-time": datetime.now(UTC).isoformat()},
        {"rondo-digest": hashlib.sha256(body + b"x").hexdigest()},
    ):
        answer = site.post("pull-messages", body, {**signed, **changed})
        assert (answer.status_code, answer.json()["detail"]) == (401, "the request is not signed"), changed
    for route in USED - {"pull-messages"}:
        assert site.post(route, body, signed).status_code == 401, route
    answer = site.post("pull-messages", body + b"x", signed)
    assert (answer.status_code, answer.json()["detail"]) == (401, "the body is not the one that was signed")
    flowers = {name.replace("rondo", "flwr"): value for name, value in signed.items()}
    assert site.post("pull-messages", body, flowers).status_code == 401


@pytest.mark.parametrize("seconds", [-400, 400])
def test_old_signature_and_wrong_clock(link: Line, seconds: int) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    site = link.site("north")
    answer = site.post("pull-messages", b"", site.signed(moment=moment))
    assert answer.status_code == 401
    assert "clock" in answer.json()["detail"]


@pytest.mark.parametrize("seconds", [-290, 290])
def test_clocks_may_differ_by_five_minutes(link: Line, seconds: int) -> None:
    site = link.site("north")
    site.connect()
    asked = fleet_pb2.PullMessagesRequest(node=site.node).SerializeToString()
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    assert site.post("pull-messages", asked, site.signed(body=asked, moment=moment)).status_code == 200


def test_revoked_and_expired_key_while_connected(link: Line) -> None:
    site = link.site("north")
    site.connect()
    assert site.post("pull-messages", fleet_pb2.PullMessagesRequest(node=site.node)).status_code == 200
    assert "north" in link.link.present()
    link.roster[0] = with_site(link, "north", revoked=True)
    for route in USED:
        answer = site.post(route, fleet_pb2.PullMessagesRequest(node=site.node))
        assert (answer.status_code, answer.json()["detail"]) == (403, "the key of north is revoked")
    assert "north" not in link.link.present()
    link.roster[0] = with_site(link, "north", revoked=False, expires=date(2024, 2, 29))
    answer = site.post("pull-messages", fleet_pb2.PullMessagesRequest(node=site.node))
    assert (answer.status_code, answer.json()["detail"]) == (403, "the key of north expired on 2024-02-29")
    link.roster[0] = Roster(tuple(s for s in link.roster[0].sites if s.name != "north"))
    assert site.connect().status_code == 403


def test_revoked_site_that_waits_for_letters_hears_at_once(link: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its question would be held for 20 s, in which a run that goes on without it may end: the site would never hear
    why the server is gone."""
    monkeypatch.setattr(fleet, "HELD", 15.0)
    site = link.site("north")
    site.connect()
    with ThreadPoolExecutor() as threads:
        asked = fleet_pb2.PullMessagesRequest(node=site.node)
        held = threads.submit(site.post, "pull-messages", asked)
        with pytest.raises(TimeoutError):
            held.result(0.5)
        link.roster[0] = with_site(link, "north", revoked=True)
        assert "north" not in link.link.present()
        assert held.result(5).status_code == 200
    assert site.post("pull-messages", asked).json()["detail"] == "the key of north is revoked"


def test_node_of_another_site(link: Line) -> None:
    north, south = link.site("north"), link.site("south")
    north.connect()
    south.connect()
    south.node = north.node
    for route, request in (
        ("pull-messages", fleet_pb2.PullMessagesRequest(node=north.node)),
        ("deactivate-node", fleet_pb2.DeactivateNodeRequest(node_id=north.node.node_id)),
        ("pull-object", message_pb2.PullObjectRequest(node=north.node)),
        ("push-object", message_pb2.PushObjectRequest(node=north.node)),
    ):
        assert south.post(route, request).status_code == 401, route
    assert "north" in link.link.present()
    public = fleet_pb2.ActivateNodeRequest(public_key=b"another's", heartbeat_interval=30.0)
    assert south.post("activate-node", public).status_code == 401


# --- what is there ------------------------------------------------------------------------------------------------


def test_nothing_is_there_but_the_routes_that_a_site_uses(link: Line) -> None:
    site = link.site("north")
    site.connect()
    headers = {"content-type": PROTOBUF}
    for method, path in PROTOBUF_REQUEST_TYPES:
        route = path.removeprefix("/v1/fleet/")
        if route not in USED:
            signed = site.signed(path, method=method)
            assert site.http.request(method, path, headers={**headers, **signed}).status_code == 404, path
    for path in ("/", "/docs", "/redoc", "/openapi.json", "/v1/fleet", "/v1/fleet/", "/metrics", "/health"):
        for method in ("GET", "POST"):
            signed = site.signed(path, method=method)
            assert site.http.request(method, path, headers={**headers, **signed}).status_code == 404, path


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_other_methods(link: Line, method: str) -> None:
    site = link.site("north")
    assert site.http.request(method, "/v1/fleet/pull-messages", headers=site.signed(method=method)).status_code in (
        404,
        400,
    )


def test_paths_that_look_alike(link: Line) -> None:
    site = link.site("north")
    for path in (
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "//v1/fleet/pull-messages",
        "/V1/fleet/pull-messages",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages%00",
        "/v1/fleet/pull-messages;x",
    ):
        request = b"POST " + path.encode() + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
        with tls(link) as sock:
            sock.sendall(request)
            assert sock.recv(100).split()[1] == b"404", path
    assert still_serves(link)
    assert site.connect().status_code == 200


def test_websocket_is_refused(link: Line) -> None:
    upgrade = "GET /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    upgrade += "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    with tls(link) as sock:
        sock.sendall(upgrade.encode())
        assert sock.recv(100).split()[1] == b"404"


# --- bodies -------------------------------------------------------------------------------------------------------


def head(size: str, headers: dict[str, str], route: str = "push-object") -> bytes:
    lines = [f"POST /v1/fleet/{route} HTTP/1.1", "host: localhost", f"content-type: {PROTOBUF}", size]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


@pytest.mark.parametrize("size", ["content-length: 1000000", "transfer-encoding: chunked"])
def test_stranger_is_answered_before_his_body_is_read(link: Line, size: str) -> None:
    """Else whoever reaches the port fills the server's memory."""
    for headers, status in (({}, b"401"), (link.stranger().signed("push-object"), b"403")):
        with tls(link) as sock:
            sock.sendall(head(size, headers))  # and nothing of the body
            assert sock.recv(1000).split()[1] == status


@pytest.mark.parametrize("route", ["pull-messages", "push-object"])
def test_no_body_is_larger_than_a_part(link: Line, route: str) -> None:
    site = link.site("north")
    for size in (2**25, 2**31, 10**18):
        with tls(link) as sock:
            sock.sendall(head(f"content-length: {size}", site.signed(route), route))
            assert sock.recv(1000).split()[1] == b"413", size


def test_chunked_body_without_length_is_cut(link: Line) -> None:
    site, chunk = link.site("north"), bytes(2**20)
    with tls(link) as sock:
        sock.sendall(head("transfer-encoding: chunked", site.signed("push-object")))
        sent = 0
        try:
            for _ in range(100):
                sock.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                sent += len(chunk)
        except (OSError, ssl.SSLError):
            pass
        else:
            sock.sendall(b"0\r\n\r\n")
        assert sent < 2**26 or sock.recv(1000).split()[1] == b"413"
    assert still_serves(link)


def test_body_that_is_no_message(link: Line) -> None:
    site = link.site("north")
    for body in (b"\xff" * 1000, b"{}", bytes(1000)):
        for route in USED:
            assert site.post(route, body).status_code in (400, 401, 415, 422), route


def test_compressed_body_is_not_unpacked(link: Line) -> None:
    import gzip

    site = link.site("north")
    body = gzip.compress(bytes(10_000_000))
    headers = {**site.signed(body=body), "content-encoding": "gzip"}
    assert site.post("pull-messages", body, headers).status_code == 400


# --- sockets ------------------------------------------------------------------------------------------------------


def test_garbage(link: Line) -> None:
    for data in (b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"a" * 4096, b""):
        with socket.create_connection(("127.0.0.1", link.link.port), 5) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in sock.recv(1000)
    with tls(link) as sock:
        sock.sendall(b"\x00\xff" * 4096)
        assert sock.recv(1000).split()[1] == b"400"
    assert still_serves(link)


def test_headers_without_end(link: Line) -> None:
    with tls(link) as sock:
        sock.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
        for i in range(20):
            sock.sendall(b"x-%d: %b\r\n" % (i, b"a" * 10_000))
        assert sock.recv(1000).split()[1] == b"400"


@pytest.mark.slow
def test_slow_request_is_cut_off(link: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    from rondo.federation.server.line import callers, door

    monkeypatch.setattr(callers, "PROMPT", 1.0)
    monkeypatch.setattr(door, "PROMPT", 1.0)
    site = link.site("north")
    for start in (b"", b"POST /v1/fleet/pull-mess", head("content-length: 10", site.signed(), "pull-messages")):
        with tls(link) as sock:
            sock.sendall(start)
            began = time.monotonic()
            sock.settimeout(15)
            while sock.recv(1000):
                pass
            assert time.monotonic() - began < 8
    assert still_serves(link)


def test_many_slow_connections_leave_room(link: Line) -> None:
    socks = [socket.create_connection(("127.0.0.1", link.link.port), 20) for _ in range(300)]
    try:
        for sock in socks[:150]:
            sock.sendall(b"\x16\x03\x01")
        began = time.monotonic()
        assert still_serves(link)
        assert time.monotonic() - began < 10
    finally:
        for sock in socks:
            sock.close()


def test_plain_http_to_the_tls_port(link: Line) -> None:
    with pytest.raises(httpx.HTTPError):
        httpx.post(f"http://localhost:{link.link.port}/v1/fleet/pull-messages")
    assert still_serves(link)


def test_wrong_authority(link: Line, tmp_path: Path) -> None:
    from rondo.federation.identity import keys

    keys.make(["localhost"], ["north"], tmp_path / "other", days=10, clients={})
    site = Intruder(link.link.port, link.site("north").key, tmp_path / "other" / "north" / "ca.crt")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        site.connect()


def test_flowers_other_requests_are_not_served(link: Line) -> None:
    site = link.site("north")
    site.connect()
    for route, request in (
        ("register-node", fleet_pb2.RegisterNodeFleetRequest(public_key=b"x")),
        ("unregister-node", fleet_pb2.UnregisterNodeFleetRequest(node_id=site.node.node_id)),
        ("get-run", run_pb2.GetRunRequest(node=site.node, run_id=1)),
        ("get-fab", fab_pb2.GetFabRequest(node=site.node, run_id=1, hash_str="")),
    ):
        assert site.post(route, request).status_code == 404, route
    assert "north" in link.link.present()
