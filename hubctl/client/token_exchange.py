"""Exchanges a token for a short-lived certificate, and caches the certificate, for `hubctl login` and `hubctl credential`."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from hubctl.auth.token_sources import CERTIFICATE, LoginCache, TokenSource
from hubctl.client.http import ApiClient
from hubctl.errors import CommandError, UsageError
from machinery.client.exec_credential import ExecCluster, ExecCredential, ExecUser
from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, Kubeconfig
from machinery.meta.timestamps import parse_time
from machinery.product import GROUP_SUFFIX, NAME

GROUP = f"login.{GROUP_SUFFIX}"
PATH = f"/apis/{GROUP}/v1alpha1/tokencredentialrequests"
KINDS = {"jwt": "JWTAuthenticator", "webhook": "WebhookAuthenticator", "serviceaccount": "ServiceAccount"}
MIN_VALIDITY = timedelta(seconds=60)
"""A cached certificate is not used if its remaining validity is shorter, because the caller needs time to use it."""


def checked_authenticator(text: str) -> str:
    """Return `text`, which must be `jwt/NAME`, `webhook/NAME` or `serviceaccount`. Raises CommandError with these forms."""
    word, slash, name = text.partition("/")
    if word not in KINDS or bool(name) != (word != "serviceaccount") or bool(slash) != bool(name):
        raise UsageError(f'"{text}" is not an authenticator: write jwt/NAME, webhook/NAME or serviceaccount')
    return text


@dataclass(frozen=True, slots=True)
class LoginKey:
    """Everything that determines the certificate of a login, except the token."""

    cluster: ExecCluster
    authenticator: str
    group_suffix: str = GROUP_SUFFIX

    def cache(self, *source: str) -> LoginCache:
        authority = sha256(self.cluster.certificate_authority).hexdigest()
        return LoginCache.of(self.cluster.server, authority, self.group_suffix, self.authenticator, *source)

    def client(self) -> ApiClient:
        """Return a client of the hub without a credential."""
        cluster = self.cluster
        endpoint = HubEndpoint("", "", group_suffix=self.group_suffix)  # type: ignore[arg-type]
        entry = ClusterEntry(
            NAME, cluster.server, cluster.certificate_authority, endpoint, cluster.proxy_url, cluster.tls_server_name
        )
        return ApiClient(Kubeconfig("of this login", NAME, entry, NAME))


INSTALL_HINT = "hubctl is the plug-in that logs in to the hub: install it, and put it on the PATH"


def plugin_of(known: LoginKey, source: TokenSource) -> ExecUser:
    """Return `hubctl credential` as the exec plug-in of a kubeconfig, with hubctl's path if it is not on the PATH."""
    own = Path(sys.argv[0])
    on_path = shutil.which("hubctl")
    command = ("hubctl",) if on_path else (str(own.absolute()),) if own.name == "hubctl" else (sys.executable, "-m", "hubctl")
    suffix = ("--group-suffix", known.group_suffix) if known.group_suffix != GROUP_SUFFIX else ()
    arguments = (*command[1:], "credential", "--authenticator", known.authenticator, *source.flags(), *suffix)
    return ExecUser(command[0], arguments, install_hint=INSTALL_HINT)


def load_credential(cache: LoginCache, now: datetime, token: str | None) -> ExecCredential | None:
    """Return the cached certificate; None: no valid one. `token`: the token for which it was issued; None: any token."""
    found = cache.read(CERTIFICATE)
    parts = [found.get(name) for name in ("chain", "key", "expires")]
    if not all(isinstance(part, str) for part in parts) or (token is not None and found.get("token_hash") != _hash(token)):
        return None
    try:
        ends = parse_time(str(parts[2]))
    except ValueError:
        return None
    return ExecCredential(str(parts[0]), str(parts[1]), str(parts[2])) if ends - now > MIN_VALIDITY else None


def exchange_token(login: LoginKey, token: str, cache: LoginCache) -> ExecCredential:
    """Exchange `token` for a certificate with a new local key, and cache both in `cache`. Raises CommandError."""
    from machinery import pki  # noqa: PLC0415 - slow to import, and only needed once in minutes
    from machinery.identity import CertificateSubject  # noqa: PLC0415 - likewise

    key = pki.generate_key()
    request = pki.build_request(CertificateSubject("hubctl"), key).decode("ascii")
    word, _, name = login.authenticator.partition("/")
    named = {"apiGroup": f"login.{login.group_suffix}", "name": name} if name else {}
    spec = {"token": token, "authenticator": {"kind": KINDS[word], **named}, "request": request}
    body = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "TokenCredentialRequest", "metadata": {}, "spec": spec}
    answer = login.client().request("POST", PATH, body)
    credential = _credential(answer, login)
    issued = ExecCredential(credential["clientCertificateData"], key.decode("ascii"), credential["expirationTimestamp"])
    document = {"chain": issued.chain, "key": issued.key, "expires": issued.expires, "token_hash": _hash(token)}
    cache.write(CERTIFICATE, document)
    return issued


def _credential(answer: Mapping[str, Any], login: LoginKey) -> Mapping[str, str]:
    status = answer.get("status") or {}
    credential = status.get("credential")
    if not isinstance(credential, Mapping):
        raise CommandError(
            f"the hub issues no certificate for this token ({status.get('message') or 'no reason'}): check that it is for "
            f"{login.authenticator} and has not expired. Only the hub's audit log has the reason"
        )
    return credential


def _hash(token: str) -> str:
    return sha256(token.encode()).hexdigest()
