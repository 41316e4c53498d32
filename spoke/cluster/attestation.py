"""Attestation: a token of one of the cluster's ServiceAccounts, issued by its API server for one hub."""

import asyncio
from pathlib import Path

from machinery.client.rest import KubeClient, RestResource
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError
from machinery.pki import unverified_claims
from spoke.ports import Attest

ACCOUNTS = RestResource("", "v1", "serviceaccounts")
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
SHORTEST = 600
"""Lifetime of a token in seconds: the shortest that Kubernetes issues."""
PREFIX = "system:serviceaccount:"
_HOW = "name a service account of the managed cluster with --attestation-service-account NAMESPACE/NAME"


class ServiceAccountAttest(Attest):
    """`account`: NAMESPACE/NAME; empty: this pod's own, read from its token in `own` (None: not in a pod there)."""

    def __init__(self, client: KubeClient, account: str = "", own: Path | None = TOKEN) -> None:
        self._client = client
        self._account = account
        self._own = own

    async def token(self, audience: str) -> str:
        account = self._account or await asyncio.to_thread(self._own_account)
        namespace, _, name = account.partition("/")
        spec = {"audiences": [audience], "expirationSeconds": SHORTEST}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            path = ACCOUNTS.path(name, namespace=namespace, subresource="token")
            answer = await self._client.create(path, asked)
        except (ForbiddenError, NotFoundError) as error:
            raise InvalidError(
                f"the hub demands a token of this cluster, and none of service account {account} can be had ({error.message}): "
                "let the agent create serviceaccounts/token of it (the chart's attestation.enabled), or " + _HOW
            ) from error
        except MusterError as error:
            raise type(error)(f"the hub demands a token of this cluster, which cannot be had now: {error.message}") from error
        return str((answer.get("status") or {}).get("token") or "")

    def _own_account(self) -> str:
        try:
            claims = unverified_claims(self._own.read_text().strip()) if self._own is not None else None
        except (OSError, UnicodeDecodeError):
            claims = None
        subject = str((claims or {}).get("sub") or "")
        namespace, _, name = subject.removeprefix(PREFIX).partition(":")
        if not subject.startswith(PREFIX) or not name:
            raise InvalidError(f"the hub demands a token of this cluster: {_HOW}")
        return f"{namespace}/{name}"
