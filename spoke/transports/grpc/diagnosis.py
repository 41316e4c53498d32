"""Finds the reason why a hub could not be reached, from the server's certificate, because gRPC reports little about TLS errors.

It performs a TLS handshake that trusts any server and sends nothing, and only after a failure.
"""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from machinery.errors import InvalidError
from machinery.meta.timestamps import format_time
from machinery.pki import CertificateFacts, parse_certificate, parse_chain
from spoke.domain.credential import validity
from spoke.ports import ClientIdentity, HubAddress

TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class _Presented:
    """A server's certificate, and the reason to distrust it, if any."""

    certificate: CertificateFacts
    distrust: str = ""


async def diagnose(address: HubAddress, identity: ClientIdentity, now: datetime) -> str:
    """One sentence about the cause; empty when none was found. `now` is this machine's time, which TLS uses."""
    host, _, port = address.target.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(TIMEOUT.total_seconds()):
            presented = await _look(host, int(port), address.ca)
    except (TimeoutError, OSError, ValueError) as error:
        said = "no answer in time" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        return f"the hub at {address.target} cannot be reached: {said}"
    if presented is None:
        return ""
    return _clock_trouble(presented.certificate, address, now) or _distrust(presented, address) or _own(address, identity, now)


async def _look(host: str, port: int, ca: bytes) -> _Presented | None:
    der = await _handshake(host, port, _context(None))
    if der is None:
        return None
    distrust = ""
    try:
        await _handshake(host, port, _context(ca))
    except ssl.SSLCertVerificationError as error:
        distrust = error.verify_message
    return _Presented(parse_certificate(der), distrust)


def _context(ca: bytes | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=ca.decode("ascii", "replace"))
    return context


async def _handshake(host: str, port: int, context: ssl.SSLContext) -> bytes | None:
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        tls: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        return tls.getpeercert(binary_form=True) if tls is not None else None
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            await writer.wait_closed()


def _clock_trouble(server: CertificateFacts, address: HubAddress, now: datetime) -> str:
    for certificate in (server, *_readable(address.ca)):
        if now < certificate.not_before:
            return (
                f"the clock of this machine is behind: it says {format_time(now)}, but the hub's certificate begins at "
                f"{format_time(certificate.not_before)}; set the clock, the agent goes on by itself"
            )
        if now > certificate.not_after:
            return (
                f"the certificate of the hub at {address.target} ended at {format_time(certificate.not_after)}, "
                f"this machine says {format_time(now)}: one of the two clocks is wrong, or the hub needs a new certificate"
            )
    return ""


def _distrust(presented: _Presented, address: HubAddress) -> str:
    if not presented.distrust:
        return ""
    return (
        f"the server at {address.target} is not the hub that the kubeconfig names ({presented.distrust}): "
        "wrong address, or the hub has another certificate authority by now: then make a new bootstrap kubeconfig there with "
        "hubctl create bootstrap-kubeconfig, and put it in the place of the old one"
    )


def _own(address: HubAddress, identity: ClientIdentity, now: datetime) -> str:
    ours = _readable(identity.certificate)
    finding = validity(ours, now)
    if finding is not None:
        return f"the hub refused our client certificate, probably because {finding.message}"
    authorities = {authority.subject_key_id for authority in _readable(address.ca)}
    if ours and ours[0].authority_key_id not in authorities:
        return "the hub refused our client certificate: it is from another certificate authority than this hub's"
    return ""


def _readable(pem: bytes) -> tuple[CertificateFacts, ...]:
    with suppress(InvalidError):
        return parse_chain(pem)
    return ()
