"""Converts failed requests to errors that name the kubeconfig, the user, and the remedy."""

import http.client
import json
import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

from hubctl.auth.identity import RequestCredentials, UserIdentity
from hubctl.errors import CommandError, ConnectionLostError, RejectedCredentialError
from machinery.client.kubeconfig import Kubeconfig

REASONS = {410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable", 504: "Timeout"}
"""Reasons by HTTP code, for answers that contain no reason, such as those of a stopping hub or of a proxy."""
UNTRUSTED = frozenset((18, 19, 20, 21))
"""OpenSSL's verify codes for chains that do not end in a trusted CA."""
TUNNEL = "Tunnel connection failed: "
"""Start of http.client's message about a proxy's answer. The status follows."""
NOT_YET_VALID, EXPIRED, WRONG_HOST, WRONG_ADDRESS = 9, 10, 62, 64


class ErrorTranslator:
    """Creates the errors of one client. They contain no part of a credential."""

    def __init__(self, kubeconfig: Kubeconfig, identity: UserIdentity, proxy: str | None) -> None:
        """`proxy`: name of the connection's proxy for messages; None: no proxy."""
        self._source = kubeconfig.source
        self._proxy = proxy
        self._acts_as = kubeconfig.impersonation.user
        self._user = f'user "{kubeconfig.user}" of kubeconfig {kubeconfig.source}'
        self._host = urlsplit(kubeconfig.cluster.server).hostname
        self._address = kubeconfig.cluster.server.rstrip("/")
        self._identity = identity

    def of_answer(self, status: int, content: bytes, presented: RequestCredentials) -> CommandError:
        try:
            document = document_of(content)
        except CommandError:
            document = {}
        reason, message = str(document.get("reason") or ""), str(document.get("message") or f"HTTP status {status}")
        if status == http.client.UNAUTHORIZED:
            return RejectedCredentialError(
                f"the hub does not know {self._user}: {self._identity.description} is revoked, expired, or of another "
                f"hub. {self._identity.advice}",
                reason=reason,
                had_no_effect=True,
            )
        if status == http.client.FORBIDDEN and presented == RequestCredentials():
            lacks = "has no credential: it needs a token, an exec plug-in or a client certificate (`hubctl login` writes one)"
            return CommandError(f"{message}. The {self._user} {lacks}", reason=reason)
        if status == http.client.FORBIDDEN:
            acting = f', acting as "{self._acts_as}",' if self._acts_as else ""
            rights = "an administrator of the hub grants rights with a ClusterRoleBinding or RoleBinding"
            return CommandError(f"{message}. The {self._user}{acting} may not do this: {rights}", reason=reason)
        return CommandError(message, reason=reason or REASONS.get(status, ""))

    def of_failure(self, error: OSError | http.client.HTTPException, presented: RequestCredentials) -> CommandError:
        """Return the error for a request that got no answer."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return CommandError(self._verification_failure(error))
        if isinstance(error, ssl.SSLError):
            return self._expired_certificate(presented) or self._tls_failure(error)
        if isinstance(error, socket.gaierror):
            if self._proxy is not None:
                return ConnectionLostError(f"the host name of {self._proxy} cannot be resolved")
            host = f'the host name "{self._host}" of the hub cannot be resolved'
            return ConnectionLostError(f"{host}: check the server in kubeconfig {self._source}")
        through = f" through {self._proxy}" if self._proxy is not None else ""
        if isinstance(error, TimeoutError):
            late = f"the hub at {self._address} does not answer{through} in time"
            return ConnectionLostError(f"{late}: check the network and firewalls between this machine and the hub")
        if str(error).startswith(TUNNEL):
            sentence = f"{self._proxy} does not connect to {self._address}: it answers {str(error)[len(TUNNEL) :][:3]}"
        else:
            why = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
            sentence = (
                f"the hub at {self._address} cannot be reached{through} ({why.lower()}): "
                f"does `hub serve` run, and is this the address it listens on? (kubeconfig {self._source})"
            )
        return self._expired_certificate(presented) or ConnectionLostError(sentence)

    def _expired_certificate(self, presented: RequestCredentials) -> CommandError | None:
        """Return the error if the client certificate has expired. The hub then ends the connection, mostly without a reason."""
        if presented.credential is None:
            return None
        from machinery import pki  # noqa: PLC0415 - slow to load, and only needed when something failed
        from machinery.runtime.clock import SystemClock  # noqa: PLC0415 - likewise

        ends = pki.parse_certificate(presented.credential.chain).not_after
        if ends > SystemClock().now():
            return None
        return RejectedCredentialError(
            f"the certificate of {self._user} expired at {ends:%Y-%m-%dT%H:%M:%SZ}. {self._identity.advice}"
        )

    def _tls_failure(self, error: ssl.SSLError) -> CommandError:
        reason = (error.reason or "").lower().replace("_", " ")
        if "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
            return RejectedCredentialError(
                f"the hub at {self._address} does not accept the client certificate of {self._user} ({reason}): "
                f"it was issued by another hub, or has expired. {self._identity.advice}"
            )
        return ConnectionLostError(
            f"no TLS connection to {self._address} ({reason or 'closed'}): is this the HTTPS port of a hub, not its gRPC port?"
        )

    def _verification_failure(self, error: ssl.SSLCertVerificationError) -> str:
        code = error.verify_code
        if code in UNTRUSTED:
            return (
                f"the server at {self._address} is not the hub of kubeconfig {self._source}: its certificate is not signed by "
                "the CA in that file. Use the kubeconfig that this hub wrote"
            )
        if code in (WRONG_HOST, WRONG_ADDRESS):
            return (
                f'the hub\'s certificate is not valid for "{self._host}": connect under a name that the hub serves, '
                "or add this one to the hub's setting serving_names (--serving-names)"
            )
        if code in (NOT_YET_VALID, EXPIRED):
            return f"the hub's certificate is {error.verify_message.removeprefix('certificate is ')}: compare both clocks"
        return f"the certificate of the server at {self._address} is not valid: {error.verify_message}"


def document_of(content: bytes) -> dict[str, Any]:
    """Parse the JSON object in an answer. Raises CommandError if the answer is not from a hub."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise CommandError("the answer is not from a hub: is the server in the kubeconfig a hub's HTTPS address?")
    return document
