"""TLS with certificates and keys in memory: contexts for servers and clients, and replaceable material of servers.

Python's `ssl` loads keys only from files. So a key is written to an anonymous memory file. If the system does not support
these, it is written to a temporary file, encrypted with a password that exists only in memory.
"""

import os
import secrets
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from machinery.errors import InvalidError

if TYPE_CHECKING:
    import asyncio

CLIENT_CIPHERS_FROM = ssl.TLSVersion.TLSv1_2
TLS_1_2_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers of TLS 1.2 with forward secrecy and authenticated encryption (RFC 9325, 4.2). All ciphers of TLS 1.3 have both."""


@dataclass(frozen=True, slots=True)
class Material:
    """Certificate chain (leaf first), key and trusted CAs of a server, all in PEM."""

    chain: bytes
    key: bytes
    trust: bytes

    def __repr__(self) -> str:
        return "Material(...)"


class Serving:
    """The TLS material of both doors. A change takes effect at the next handshake; open connections stay.

    Trusted CAs cannot be removed from an SSLContext. Therefore a change creates a new context, to which each handshake
    switches.
    """

    def __init__(self, material: Material) -> None:
        self.material = material
        self._clients: dict[str, bytes] = {}
        self._newest = server_context(material)
        self.context = server_context(material)
        """Context for an HTTPS listener: TLS 1.2 or later; the client certificate is optional."""
        self.context.sni_callback = self._hand_on

    def replace(self, material: Material) -> None:
        """Replace the material. Raises InvalidError, and changes nothing, if certificate and key do not match."""
        self._newest = server_context(material, *self._clients.values())
        self.material = material

    def trust_clients(self, source: str, authorities: bytes) -> None:
        """Also accept client certificates of the CAs `authorities` (PEM). They replace the earlier CAs of `source`; b"": no CA.

        The rights of these certificates are decided elsewhere. Raises InvalidError, and then changes nothing.
        """
        clients = {name: bundle for name, bundle in self._clients.items() if name != source}
        clients |= {source: authorities} if authorities else {}
        self._newest = server_context(self.material, *clients.values())
        self._clients = clients

    def _hand_on(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest


def server_context(material: Material, *clients: bytes) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later with an optional client certificate. Raises InvalidError.

    `clients`: further bundles (PEM) of CAs for client certificates. A trusted CA may be an intermediate CA.
    """
    context = anonymous_server_context(material.chain, material.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for trusted in (material.trust, *clients):
        _trust(context, trusted)
    return context


def anonymous_server_context(chain: bytes, key: bytes) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later that requests no client certificate. `chain`, `key`: PEM. Raises InvalidError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = CLIENT_CIPHERS_FROM
    context.set_ciphers(TLS_1_2_CIPHERS)
    load_pair(context, chain, key)
    return context


def client_context(trust: bytes, chain: bytes | None = None, key: bytes | None = None) -> ssl.SSLContext:
    """Return a context that verifies the server by `trust` (PEM) and presents `chain` with `key`. Raises InvalidError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = CLIENT_CIPHERS_FROM
    _trust(context, trust)
    if chain is not None and key is not None:
        load_pair(context, chain, key)
    return context


def peer_certificate(transport: "asyncio.BaseTransport | None") -> bytes | None:
    """Return the DER of the verified client certificate; None if the client sent none. aiohttp: pass `request.transport`."""
    connection = None if transport is None else transport.get_extra_info("ssl_object")
    der: bytes | None = None if connection is None else connection.getpeercert(binary_form=True)
    return der


async def shown_certificate(host: str, port: int) -> bytes:
    """Return the DER of a server's certificate without verifying it, only to explain why a verified connection failed.

    Raises OSError if the connection fails. It has no timeout of its own.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    import asyncio  # noqa: PLC0415 - takes 30 ms, and hubctl starts without it

    _reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return der
    finally:
        writer.transport.abort()


def _trust(context: ssl.SSLContext, trust: bytes) -> None:
    try:
        context.load_verify_locations(cadata=trust.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise InvalidError("the trusted certificates cannot be read: expected PEM") from None


def load_pair(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Make the context present `chain` with `key` (both PEM) from the next handshake on. Raises InvalidError."""
    try:
        with _pair_file(chain, key) as (path, password):
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError):
        raise InvalidError("the certificate and its key cannot be used: are they PEM, and a pair?") from None


@contextmanager
def _pair_file(chain: bytes, key: bytes) -> Iterator[tuple[str, str | None]]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pair")
        try:
            os.write(descriptor, key + b"\n" + chain)
            yield f"/proc/self/fd/{descriptor}", None
        finally:
            os.close(descriptor)
        return
    password = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pair.pem")
        path.write_bytes(_encrypted(key, password) + b"\n" + chain)
        yield str(path), password


def _encrypted(key: bytes, password: str) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - slow to import, and rarely needed

    private = serialization.load_pem_private_key(key, password=None)
    encryption = serialization.BestAvailableEncryption(password.encode())
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
