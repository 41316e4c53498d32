"""Checks both doors at their advertised addresses, and queries the HTTPS door as the administrator.

The first check connects as a client without a certificate. TLS must end at the hub, which identifies agents and operators by
their client certificates: a proxy that terminates TLS drops these certificates. A server at the agents' address that requests
no client certificate, has a certificate that is not the hub's, or does not support HTTP/2, is not the hub.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from enum import Enum, auto

from hub.commands.doctor import DoctorFinding, broken, warning, well
from hub.issuer.local import CA_CERTIFICATE
from hub.replica.admin_kubeconfig import ADMIN_FILE, BUNDLE
from hub.replica.installation import Addresses
from hub.settings import HubSettings
from hub.settings.fields import Address
from machinery import pki
from machinery.client.kubeconfig_documents import read_document
from machinery.client.rest import KubeClient
from machinery.errors import InvalidError
from machinery.runtime.clock import Clock
from machinery.runtime.tls import client_context, shown_certificate

PROBE_TIMEOUT = timedelta(seconds=5)
LISTENS = timedelta(seconds=2)
"""Longest wait for a server's answer to the HTTP/2 preface."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""HTTP/2 preface with empty settings."""
WRONG_NAME = frozenset((62, 64))
"""OpenSSL's verify codes for a certificate without the requested name or address."""
REQUEST_TIMEOUT = timedelta(seconds=10)
APART = timedelta(seconds=5)
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
CREATED, OK = 201, 200
_PROXY = (
    "TLS must end at the hub: have the load balancer, Ingress or Gateway pass TCP on (ssl-passthrough, TLSRoute, mode tcp); "
    "one that ends TLS drops the client certificates by which the hub identifies its clients"
)


class HandshakeProblem(Enum):
    """Why a connection does not reach the hub."""

    NAME = auto()
    """The host name cannot be resolved."""
    CONNECTION = auto()
    STRANGER = auto()
    """The certificate is not the hub's."""
    HOST = auto()
    """The hub's certificate does not contain the host of the address."""
    DATES = auto()
    NO_TLS = auto()
    NO_HTTP2 = auto()
    TERMINATED = auto()
    """The server requests no client certificate."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """Result of `dial`. `problem`: None if the hub answers. `message`: network error, or description of the certificate."""

    problem: HandshakeProblem | None
    message: str = ""


async def dial(address: Address, trust: bytes, *, grpc: bool) -> Dialled:
    """Connect once without a client certificate. `grpc`: expect HTTP/2, and a door that refuses clients without one."""
    context = client_context(trust)
    context.set_alpn_protocols(["h2"] if grpc else ["http/1.1"])
    try:
        async with asyncio.timeout(PROBE_TIMEOUT.total_seconds()):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname=address.host
            )
    except ssl.SSLCertVerificationError as error:
        return await _distrusted(address, error)
    except ssl.SSLError as error:
        return Dialled(HandshakeProblem.NO_TLS, error.reason or "no TLS")
    except (OSError, TimeoutError) as error:
        problem = HandshakeProblem.NAME if isinstance(error, socket.gaierror) else HandshakeProblem.CONNECTION
        return Dialled(problem, (error.strerror or str(error) or "no answer in time").lower())
    try:
        if grpc and writer.get_extra_info("ssl_object").selected_alpn_protocol() != "h2":
            return Dialled(HandshakeProblem.NO_HTTP2)
        return Dialled(HandshakeProblem.TERMINATED if grpc and await _is_let_in(reader, writer) else None)
    finally:
        writer.transport.abort()


async def _is_let_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether HTTP/2 works without a client certificate. TLS 1.3 reports a refusal only after its handshake."""
    with suppress(OSError, TimeoutError):
        writer.write(PREFACE)
        async with asyncio.timeout(LISTENS.total_seconds()):
            return bool(await reader.read(1))
    return False


async def _distrusted(address: Address, error: ssl.SSLCertVerificationError) -> Dialled:
    shown = await _shown(address)
    if error.verify_code in WRONG_NAME:
        return Dialled(HandshakeProblem.HOST, shown)
    dates = "expired" in error.verify_message or "not yet valid" in error.verify_message
    return Dialled(HandshakeProblem.DATES if dates else HandshakeProblem.STRANGER, shown)


async def _shown(address: Address) -> str:
    """Return a description of the served certificate; "" if a second connection fails."""
    with suppress(OSError, TimeoutError, InvalidError):
        async with asyncio.timeout(PROBE_TIMEOUT.total_seconds()):
            der = await shown_certificate(address.host, address.port)
        facts = pki.parse_certificate(ssl.DER_cert_to_PEM_cert(der).encode())
        names = ", ".join((*facts.dns_names, *facts.ip_addresses)) or "no name"
        return f"for {names}, until {facts.not_after:%Y-%m-%d}"
    return ""


@dataclass(frozen=True, slots=True)
class DoorAt:
    """A door to check. `address`: advertised address, set by `setting`. `listening`: address at which this machine listens."""

    name: str
    address: Address
    listening: Address
    grpc: bool
    setting: str


def doors_of(settings: HubSettings) -> tuple[DoorAt, DoorAt]:
    seen = Addresses.of(settings)
    return (
        DoorAt("gRPC door", seen.grpc, settings.grpc_listen, grpc=True, setting="grpc_advertised"),
        DoorAt("HTTPS door", seen.https, settings.https_listen, grpc=False, setting="https_advertised"),
    )


def trust_of(settings: HubSettings) -> bytes | None:
    """Return the trust bundle in the data directory, or else the CA certificate beside the keys; None if there is neither."""
    folder = settings.data_dir
    for path in (folder / BUNDLE, (settings.keys_dir or folder) / CA_CERTIFICATE):
        if path.exists():
            return path.read_bytes()
    return None


async def reached(door: DoorAt, trust: bytes) -> list[DoctorFinding]:
    """Check whether the hub itself answers at the advertised address."""
    found = []
    if door.address.is_loopback:
        message = f"{door.address} is the address in kubeconfigs, and it cannot be reached from another machine"
        advice = f"--{door.setting.replace('_', '-')} with an address that other machines can reach"
        found = [warning(door.name, message, advice)]
    dialled, local = await dial(door.address, trust, grpc=door.grpc), door.listening.local
    if dialled.problem is None:
        return [well(door.name, f"answers at {door.address} with the hub's certificate"), *found]
    within = await dial(local, trust, grpc=door.grpc) if door.address != local else dialled
    return [_finding(door, dialled, within), *found]


def _finding(door: DoorAt, dialled: Dialled, within: Dialled) -> DoctorFinding:
    """Return what is wrong at the advertised address. `within`: the result at the listening address."""
    host, server, setting = door.address.host, f"the server at {door.address}", door.setting
    shown = f" (it presents one {dialled.message})" if dialled.message else ""
    between = f"check firewall, load balancer and Service between the two; or {setting} is wrong"
    if within.problem is not None:
        between = f"check that `hub serve` runs and listens on {door.listening}, and its log"
    reissue = "the hub issues its certificate again at its next start"
    message, advice = {
        HandshakeProblem.NAME: (f"{host} cannot be resolved: {dialled.message}", f"check {setting} and the DNS"),
        HandshakeProblem.CONNECTION: (f"no server answers at {door.address}: {dialled.message}", between),
        HandshakeProblem.STRANGER: (
            f"{server} presents a certificate that is not the hub's{shown}",
            f"{_PROXY}. Or {setting} names another server",
        ),
        HandshakeProblem.HOST: (
            f"the hub's certificate is not for {host}{shown}",
            f"set {setting}, or name it with --serving-names; {reissue}",
        ),
        HandshakeProblem.DATES: (
            f"the hub's certificate is not valid now{shown}",
            "set the clock, or see /readyz for its renewal",
        ),
        HandshakeProblem.NO_HTTP2: (f"{server} does not support HTTP/2: it is not the gRPC door", _PROXY),
        HandshakeProblem.TERMINATED: (f"{server} requests no client certificate: TLS ends before the hub", _PROXY),
        HandshakeProblem.NO_TLS: (f"{server} does not use TLS: {dialled.message}", _PROXY),
    }[dialled.problem or HandshakeProblem.NO_TLS]
    here = f"; the hub itself answers at {door.listening.local}" if within.problem is None else ""
    return broken(door.name, message + here, advice)


async def query_door(settings: HubSettings, clock: Clock) -> AsyncIterator[DoctorFinding]:
    """Query the HTTPS door as the administrator, and check its user name, clock and readiness. Raises MusterError."""
    path = settings.data_dir / ADMIN_FILE
    if not path.exists():
        message = f"{path} does not exist: the door cannot be queried as an operator"
        yield warning("operators", message, "the next start creates it")
        return
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with await KubeClient.from_document(
        read_document(path), origin=str(path), within=REQUEST_TIMEOUT, environment_proxies=False
    ) as client:
        answer, ready = await client.raw("POST", REVIEW, body=review), await client.raw("GET", "/readyz", {"verbose": True})
    if answer.status == CREATED:
        user = json.loads(answer.body)["status"]["userInfo"]["username"]
        yield well("operators", f"the certificate in {path} is accepted: {user}")
    else:
        message = f"the certificate in {path} is not accepted (HTTP status {answer.status})"
        yield broken(
            "operators", message, f"{_PROXY}. If the door is reachable: the hub writes a new {path.name} when it starts"
        )
    date = answer.headers.get("Date")
    if date and abs(ahead := parsedate_to_datetime(date) - clock.now()) > APART:
        side = "ahead of" if ahead > timedelta() else "behind"
        message = f"that of the replica that answered is {abs(ahead).total_seconds():.0f} s {side} this machine's"
        yield broken("clock", message, "set both clocks by NTP")
    if ready.status == OK:
        yield well("readiness", "all checks of /readyz pass")
        return
    lines = ready.body.decode("utf-8", "replace").splitlines()
    for each in [line.removeprefix("[-]") for line in lines if line.startswith("[-]")] or [f"HTTP status {ready.status}"]:
        yield broken("readiness", each, "see the hub's log")
