"""Where the requests go: a base URL as the `openai` client takes it, and the key, which comes from the environment."""

import ipaddress
import os
import re
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from helpers.errors import InputError


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server; `path` is the prefix of the base URL, mostly ``/v1``.

    It is reached directly: a proxy named in the environment would be one more thing that is measured.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def loopback(self) -> bool:
        """Does a request stay on this machine?"""
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_header(self) -> str:
        """The Host header: IPv6 in brackets, the port where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host_header}{self.path}"

    def addresses(self) -> list[tuple]:
        """(family, socket address) of the host, in the system's order. Raises InputError on an unknown name."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise InputError(f"host {self.host!r} is unknown here ({error})") from error
        return [(family, address) for family, _, _, _, address in found]


_DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_endpoint(base_url: str) -> Endpoint:
    """The endpoint of a base URL such as ``http://127.0.0.1:8000/v1``.

    Raises InputError where the URL is none, is neither http nor https, or holds a password, a query or a fragment:
    a key belongs in the environment, where no log and no error message repeats it.
    """
    try:
        parts = urlsplit(base_url)
        host, port = parts.hostname, parts.port
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"the base URL is not understood ({error})") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InputError("the base URL must hold no user, password, query or fragment: name a key variable instead")
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise InputError(f"base URL {base_url!r} must look like http://HOST:PORT/v1 or https://HOST/v1")
    if not re.fullmatch(r"[!-~]*", parts.path):
        raise InputError(f"base URL {base_url!r} holds characters that a path cannot have")
    if parts.path.rstrip("/").endswith(("/chat/completions", "/completions")):
        raise InputError(f"base URL {base_url!r} must end before /chat/completions, mostly in /v1")
    return Endpoint(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], parts.path.rstrip("/"))


def key_from(variable: str | None) -> str | None:
    """The key in an environment variable; None where none is named. Raises InputError, which never shows the key."""
    if variable is None:
        return None
    # What is no name may be the key itself, pasted in its place: it is not repeated.
    if not isinstance(variable, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise InputError("the key variable must be the name of an environment variable, not the key itself")
    key = os.environ.get(variable, "")
    if not key:
        raise InputError(f"environment variable {variable} holds no key")
    if not re.fullmatch(r"[!-~]+", key):
        raise InputError(f"the key in environment variable {variable} holds a space or another character no key has")
    return key


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Certificates are always verified, against the system's authorities or those of `ca_file`."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"certificate file {ca_file} cannot be read ({error})") from error
    context.set_alpn_protocols(["http/1.1"])
    return context
