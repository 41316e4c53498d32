"""The address that a channel to a hub connects to, and the reason why a hub could not be reached.

gRPC's own selection of proxies is disabled, because it lets NO_PROXY override an explicit proxy. Instead, the channel dials the
proxy, requests a tunnel to the hub with CONNECT, and expects the hub's certificate.

gRPC reports little about TLS errors. After a failure, `diagnose` performs a TLS handshake that accepts any certificate, sends
nothing, and examines the server's certificate.
"""

import asyncio
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import unquote, urlsplit

from machinery.errors import InvalidError
from machinery.meta.timestamps import format_time
from machinery.pki import CertificateFacts, parse_certificate, parse_chain
from machinery.runtime.backoff import Backoff
from machinery.runtime.tls import client_context, shown_certificate
from spoke.domain.credential import validity
from spoke.ports.hub import ClientIdentity, HubAddress

Options = tuple[tuple[str, str | int], ...]
DEFAULT_PORT = 80


def dialled(address: HubAddress) -> tuple[str, Options]:
    """Return the address to dial, and the options of the channel."""
    alone: Options = (("grpc.enable_http_proxy", 0),)
    if not address.proxy:
        return address.target, alone
    proxy = urlsplit(address.proxy)
    host = f"[{proxy.hostname}]" if ":" in (proxy.hostname or "") else proxy.hostname
    options = (*alone, ("grpc.http_connect_server", address.target), ("grpc.default_authority", address.target))
    if proxy.username is not None:
        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        options = (*options, ("grpc.http_connect_headers", f"Proxy-Authorization: Basic {b64encode(login).decode()}"))
    return f"{host}:{proxy.port or DEFAULT_PORT}", options


WELCOME_TIMEOUTS = tuple(timedelta(seconds=seconds) for seconds in (5, 10, 20))
"""Times to wait for Welcome: at first, after one timeout, and after further timeouts. A frozen replica behind a load balancer
accepts connections but sends nothing. But if a hub is only slow, because its whole fleet connects, an attempt that ends too
early costs the hub as much as a session."""


FIRST_OVERLOAD_PAUSE, LONGEST_OVERLOAD_PAUSE = timedelta(seconds=2), timedelta(minutes=1)
"""Pauses after attempts that an overloaded hub did not serve. Each attempt costs the hub a TLS handshake: 10,000 agents that
pause 15 s on average make 670 per second."""


class HubBackoff:
    """Counts the failed attempts per hub since its last answer.

    If an address accepts a connection but does not answer, the next attempt dials another address first, and waits longer.
    After each attempt that the hub did not serve, the pause grows.
    """

    def __init__(self) -> None:
        self._silent: dict[str, int] = {}
        self._in_a_row: dict[str, int] = {}
        self._pauses: dict[str, Backoff] = {}

    def silent(self, target: str) -> None:
        """Record that the address of `target` that was dialled first did not answer in time."""
        self._silent[target] = self._silent.get(target, 0) + 1
        self._in_a_row[target] = self._in_a_row.get(target, 0) + 1

    def answered(self, target: str) -> None:
        """Record that an address of `target` answered, so that the next timeout and pause are the shortest again."""
        self._in_a_row.pop(target, None)
        self._pauses.pop(target, None)

    def pause(self, target: str) -> timedelta:
        """Count an attempt that the hub refused, dropped or did not answer. Return the pause before the next attempt."""
        return self._pauses.setdefault(target, Backoff(FIRST_OVERLOAD_PAUSE, LONGEST_OVERLOAD_PAUSE)).next()

    def timeout(self, target: str) -> timedelta:
        """Return the time to wait for Welcome, the hub's first message in a session."""
        return WELCOME_TIMEOUTS[min(self._in_a_row.get(target, 0), len(WELCOME_TIMEOUTS) - 1)]

    async def dialled(self, address: HubAddress) -> tuple[str, Options]:
        """Return the address to dial and the options. After a missing answer, rotate the addresses of the host name."""
        turns = self._silent.get(address.target, 0)
        if not turns or address.proxy:
            return dialled(address)
        host, _, port = address.target.rpartition(":")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except OSError:
            return dialled(address)
        places = sorted({(family, str(place[0])) for family, _, _, _, place in found})
        places = places[turns % len(places) :] + places[: turns % len(places)]
        family = places[0][0]
        ordered = [f"[{each}]:{port}" if family == socket.AF_INET6 else f"{each}:{port}" for of, each in places if of == family]
        scheme = "ipv6" if family == socket.AF_INET6 else "ipv4"
        return f"{scheme}:{','.join(ordered)}", (*dialled(address)[1], ("grpc.default_authority", address.target))


DIAGNOSIS_TIMEOUT = timedelta(seconds=5)


async def diagnose(address: HubAddress, identity: ClientIdentity, now: datetime) -> str:
    """Return one sentence about the cause of a failure; empty: no cause was found. `now`: this machine's time."""
    host, _, port = address.target.rpartition(":")
    host, distrust = host.strip("[]"), ""
    try:
        async with asyncio.timeout(DIAGNOSIS_TIMEOUT.total_seconds()):
            der = await shown_certificate(host, int(port))
            context = client_context(address.ca)
            context.set_alpn_protocols(["h2"])
            try:
                _, writer = await asyncio.open_connection(host, int(port), ssl=context)
                writer.transport.abort()
            except ssl.SSLCertVerificationError as error:
                distrust = error.verify_message
    except (TimeoutError, OSError, ValueError, InvalidError) as error:
        said = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        return f"the hub at {address.target} cannot be reached: {said}"
    return _cause(parse_certificate(der), distrust, address, identity, now)


def _cause(server: CertificateFacts, distrust: str, address: HubAddress, identity: ClientIdentity, now: datetime) -> str:
    """Return the first problem of clocks or certificates; empty: no problem."""
    trusted, ours = _readable(address.ca), _readable(identity.certificate)
    for certificate in (server, *trusted):
        if now < certificate.not_before:
            return (
                f"the clock of this machine is behind: it says {format_time(now)}, but the hub's certificate begins at "
                f"{format_time(certificate.not_before)}; set the clock; the agent then continues"
            )
        if now > certificate.not_after:
            return (
                f"the certificate of the hub at {address.target} ended at {format_time(certificate.not_after)}, "
                f"this machine says {format_time(now)}: one of the two clocks is wrong, or the hub needs a new certificate"
            )
    if distrust:
        return (
            f"the server at {address.target} is not the hub that the kubeconfig names ({distrust}): "
            "the address is wrong, or the hub has another CA now; in this case "
            "make a new bootstrap kubeconfig at the hub with hubctl create bootstrap-kubeconfig, and replace the old one"
        )
    if finding := validity(ours, now):
        return f"the hub refused our client certificate, probably because {finding.message}"
    if ours and ours[0].authority_key_id not in {authority.subject_key_id for authority in trusted}:
        return "the hub refused our client certificate: it is from another certificate authority than this hub's"
    return ""


def _readable(pem: bytes) -> tuple[CertificateFacts, ...]:
    with suppress(InvalidError):
        return parse_chain(pem)
    return ()
