"""Checks both doors at their advertised addresses, and queries the HTTPS door as the administrator."""

import http.client
import json
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from urllib.parse import urlsplit

from hub.commands.doctor.findings import DoctorFinding, broken, warning, well
from hub.commands.doctor.tls_probe import Dialled, HandshakeProblem, dial
from hub.issuer.local import CA_CERTIFICATE
from hub.replica.admin_kubeconfig import ADMIN_FILE, BUNDLE
from hub.replica.installation import Addresses
from hub.settings import HubSettings
from hub.settings.fields import Address
from machinery.client.kubeconfig import Kubeconfig, read_kubeconfig
from machinery.runtime.clock import Clock
from machinery.runtime.tls import client_context

REQUEST_TIMEOUT = timedelta(seconds=10)
APART = timedelta(seconds=5)
REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
CREATED, OK = 201, 200
_PROXY = (
    "TLS must end at the hub: have the load balancer, Ingress or Gateway pass TCP on (ssl-passthrough, TLSRoute, mode tcp); "
    "one that ends TLS drops the client certificates by which the hub identifies its clients"
)


@dataclass(frozen=True, slots=True)
class DoorAt:
    """A door: its advertised address and its listening address."""

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
    """The trust bundle in the data directory; None: there is none."""
    folder = settings.data_dir
    for path in (folder / BUNDLE, (settings.keys_dir or folder) / CA_CERTIFICATE):
        if path.exists():
            return path.read_bytes()
    return None


async def reached(door: DoorAt, trust: bytes) -> list[DoctorFinding]:
    """Whether the hub itself answers at the advertised address."""
    found = _only_here(door)
    dialled = await dial(door.address, trust, grpc=door.grpc)
    if dialled.problem is None:
        return [well(door.name, f"is behind {door.address}, with the hub's own certificate"), *found]
    within = await dial(_near(door.listening), trust, grpc=door.grpc) if door.address != _near(door.listening) else dialled
    return [_finding(door, dialled, within), *found]


def _only_here(door: DoorAt) -> list[DoctorFinding]:
    try:
        is_local = ip_address(door.address.host).is_loopback
    except ValueError:
        is_local = door.address.host == "localhost"
    if not is_local:
        return []
    message = f"{door.address} is the address in kubeconfigs, and it cannot be reached from another machine"
    return [warning(door.name, message, f"--{door.setting.replace('_', '-')} with an address that other machines can reach")]


def _near(listening: Address) -> Address:
    """The address at which this machine reaches a door that listens everywhere."""
    try:
        is_everywhere = ip_address(listening.host).is_unspecified
    except ValueError:
        is_everywhere = False
    return Address("::1" if ":" in listening.host else "127.0.0.1", listening.port) if is_everywhere else listening


def _finding(door: DoorAt, dialled: Dialled, within: Dialled) -> DoctorFinding:
    """What is wrong at the advertised address. `within`: the result at the listening address."""
    host, server, setting = door.address.host, f"the server at {door.address}", door.setting
    shown = f" (it shows one {dialled.message})" if dialled.message else ""
    between = f"check firewall, load balancer and Service between the two; or {setting} is wrong"
    if within.problem is not None:
        between = f"does `hub serve` run, and does it listen on {door.listening}? its log says"
    anew = "the hub makes its certificate anew at its next start"
    message, advice = {
        HandshakeProblem.NAME: (f"{host} cannot be resolved: {dialled.message}", f"check {setting} and the DNS"),
        HandshakeProblem.CONNECTION: (f"nobody answers at {door.address}: {dialled.message}", between),
        HandshakeProblem.STRANGER: (
            f"{server} shows a certificate that is not the hub's{shown}",
            f"{_PROXY}. Or {setting} names another server",
        ),
        HandshakeProblem.HOST: (
            f"the hub's certificate is not for {host}{shown}",
            f"set {setting}, or name it with --serving-names; {anew}",
        ),
        HandshakeProblem.DATES: (
            f"the hub's certificate is not valid now{shown}",
            "set the clock, or see /readyz for its renewal",
        ),
        HandshakeProblem.NO_HTTP2: (f"{server} speaks no HTTP/2: it is not the gRPC door", _PROXY),
        HandshakeProblem.TERMINATED: (f"{server} asks for no client certificate: TLS ends before the hub", _PROXY),
        HandshakeProblem.NO_TLS: (f"{server} speaks no TLS: {dialled.message}", _PROXY),
    }[dialled.problem or HandshakeProblem.NO_TLS]
    here = f"; the hub itself answers at {_near(door.listening)}" if within.problem is None else ""
    return broken(door.name, message + here, advice)


async def query_door(settings: HubSettings, clock: Clock) -> AsyncIterator[DoctorFinding]:
    """Ask the HTTPS door, as the administrator, for the user name, its time and its readiness.

    Raises MusterError, OSError, HTTPException.
    """
    path = settings.data_dir / ADMIN_FILE
    if not path.exists():
        message = f"{path} is not there: the door cannot be asked as an operator"
        yield warning("operators", message, "the next start makes it")
        return
    kubeconfig = read_kubeconfig(path)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    status, date, content = await to_thread(_request, kubeconfig, "POST", REVIEW, json.dumps(review).encode())
    if status == CREATED:
        user = json.loads(content)["status"]["userInfo"]["username"]
        yield well("operators", f"the certificate in {path} arrives: {user}")
    else:
        message = f"the certificate in {path} does not arrive, or is not known (HTTP status {status})"
        yield broken("operators", message, f"{_PROXY}. If the door is well: the hub writes a fresh {path.name} when it starts")
    if date is not None and abs(ahead := date - clock.now()) > APART:
        side = "ahead of" if ahead > timedelta() else "behind"
        message = f"that of the replica that answered is {abs(ahead).total_seconds():.0f} s {side} this machine's"
        yield broken("clock", message, "set both clocks by NTP")
    status, _, content = await to_thread(_request, kubeconfig, "GET", "/readyz?verbose")
    if status == OK:
        yield well("readiness", "all checks of /readyz pass")
        return
    failing = [line.removeprefix("[-]") for line in content.decode("utf-8", "replace").splitlines() if line.startswith("[-]")]
    for each in failing or [f"HTTP status {status}"]:
        yield broken("readiness", each, "the hub's log says more")


def _request(kubeconfig: Kubeconfig, method: str, target: str, body: bytes | None = None) -> tuple[int, datetime | None, bytes]:
    server, credential = urlsplit(kubeconfig.cluster.server), kubeconfig.require_credential()
    context = client_context(kubeconfig.cluster.certificate_authority, credential.chain, credential.key)
    connection = http.client.HTTPSConnection(
        server.hostname or "", server.port or 443, timeout=REQUEST_TIMEOUT.total_seconds(), context=context
    )
    with closing(connection):
        connection.request(method, target, body, {"Content-Type": "application/json", "User-Agent": "hub-doctor"})
        answer = connection.getresponse()
        date = answer.getheader("Date")
        return answer.status, parsedate_to_datetime(date) if date else None, answer.read()
