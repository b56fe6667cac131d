"""The proxy between a site and its server, as the environment names it: HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from rondo.errors import ConfigError


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. It is asked for a tunnel (CONNECT), in which TLS is between site and server."""

    host: str
    port: int
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""

    def __str__(self) -> str:
        """Its address, without user and password."""
        return f"{self.host}:{self.port}"


def proxy_to(host: str, port: int) -> Proxy | None:
    """The proxy for connections to ``host`` and ``port``; None for a straight connection. Raises :class:`ConfigError`
    for a proxy that is not spoken to: one over SOCKS, and one that is itself behind TLS."""
    proxies = getproxies()
    scheme = next((scheme for scheme in ("https", "all") if proxies.get(scheme)), None)
    if scheme is None or proxy_bypass(f"{host}:{port}", proxies) or proxy_bypass(host, proxies):
        return None
    name = f"{scheme}_proxy"
    if not os.environ.get(name):
        name = next(key for key in os.environ if key.lower() == name)
    address = proxies[scheme] if "://" in proxies[scheme] else f"http://{proxies[scheme]}"
    try:
        parts = urlsplit(address)
        proxy, proxy_port = parts.hostname or "", parts.port or _PORT
        proxy.encode("ascii")
    except ValueError:
        proxy = ""
    if not proxy:
        raise ConfigError.at(name, f"is not the address of a proxy: {_REMEDY}")
    if parts.scheme.lower() != "http":
        where = parts.netloc.rpartition("@")[2]
        raise ConfigError.at(name, f"the proxy {where} speaks {parts.scheme.lower()}, and a site HTTP: {_REMEDY}")
    login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return Proxy(proxy, proxy_port, login)


_PORT = 80
"""The port of an HTTP proxy whose address names none."""
_REMEDY = "set it to http://HOST:PORT of a proxy that gives tunnels (CONNECT), or name the server in NO_PROXY"
