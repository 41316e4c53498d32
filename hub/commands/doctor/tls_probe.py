"""Probes a TLS server as a client without a certificate.

TLS must end at the hub, which identifies agents and operators by their client certificates; a proxy that terminates TLS drops
them. A server at the agents' address that requests no client certificate, has another certificate, or does not support HTTP/2,
is not the hub.
"""

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto

from hub.settings.fields import Address
from machinery import pki
from machinery.errors import InvalidError
from machinery.runtime.tls import client_context, shown_certificate

PROBE_TIMEOUT = timedelta(seconds=5)
LISTENS = timedelta(seconds=2)
"""Time for a server to answer or refuse the preface."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""HTTP/2 preface with empty settings."""
WRONG_NAME = frozenset((62, 64))
"""OpenSSL's verify codes for a certificate without the requested name or address."""


class HandshakeProblem(Enum):
    """Why the server is not the hub."""

    NAME = auto()
    """The host name cannot be resolved."""
    CONNECTION = auto()
    STRANGER = auto()
    """The certificate is not the hub's."""
    HOST = auto()
    """The hub's certificate lacks this name."""
    DATES = auto()
    NO_TLS = auto()
    NO_HTTP2 = auto()
    TERMINATED = auto()
    """It requests no client certificate."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """The result. `message`: the error of the network, or a description of the certificate."""

    problem: HandshakeProblem | None
    message: str = ""


async def dial(address: Address, trust: bytes, *, grpc: bool) -> Dialled:
    """Connect once. `grpc`: the agents' door, which requires a client certificate and HTTP/2."""
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
    """Description of the served certificate; "" if a second connection fails."""
    with suppress(OSError, TimeoutError, InvalidError):
        async with asyncio.timeout(PROBE_TIMEOUT.total_seconds()):
            der = await shown_certificate(address.host, address.port)
        facts = pki.parse_certificate(ssl.DER_cert_to_PEM_cert(der).encode())
        names = ", ".join((*facts.dns_names, *facts.ip_addresses)) or "no name"
        return f"for {names}, until {facts.not_after:%Y-%m-%d}"
    return ""
