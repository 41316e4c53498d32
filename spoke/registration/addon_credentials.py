"""Credentials of add-ons: a certificate for the hub's API, one of another signer, or a token of a ServiceAccount on the hub.

Each credential is in one secret. One write replaces the whole secret, so the old credential stays until the new one is stored.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from machinery.errors import InvalidError, MusterError
from machinery.identity import HubId
from machinery.meta.conditions import Condition
from machinery.pki import CertificateFacts, parse_chain, public_key_of, unverified_claims
from machinery.runtime.clock import Clock
from spoke.credentials.kubeconfigs import by_token_file, is_same_but_for_trust
from spoke.credentials.slot import Contents, Slot
from spoke.domain.addon import (
    TOKEN,
    AddOn,
    AddOnRegistration,
    AddOnToken,
    token_due,
    token_failed_condition,
    token_refreshed_condition,
)
from spoke.domain.credential import CERTIFICATE, CLUSTER_NAME, HUB_ID, KEY, KUBECONFIG, RECOVERY, TOKEN_FILE, validity
from spoke.domain.names import AgentIdentity
from spoke.domain.schedule import RequestedRenewal, rotate_at
from spoke.options import AddOnOptions
from spoke.ports.cluster import Secrets
from spoke.ports.hub import HubClient
from spoke.registration.csr_flow import CSRFlow, WantedCertificate, rotated_condition, rotation_failed_condition

DECISION_TIMEOUT = timedelta(seconds=30)
"""Time for which one call of `reconcile` waits for a decision. The request stays stored, and the next call resumes it."""
RETRY = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class AddOnContext:
    """Data shared by the credentials of all add-ons at one hub."""

    agent: AgentIdentity
    kubeconfig: bytes
    secrets: Callable[[AddOn], Secrets]
    """Returns the port to the secrets in the namespace of an add-on."""
    pending: Callable[[str], Slot]
    """Returns the slot of the pending request for a secret."""
    duration: timedelta | None = None
    hub_id: HubId | None = None
    options: AddOnOptions = field(default_factory=AddOnOptions)


@dataclass(frozen=True, slots=True)
class RenewalRequest:
    """A renewal that the hub requests, and the hub time at which the request arrived."""

    renewal: RequestedRenewal
    received_at: datetime


@dataclass(frozen=True, slots=True)
class AddOnCheckResult:
    """Result of one `reconcile`: the time until the next call, and a condition to report on the add-on."""

    next_in: timedelta
    condition: Condition | None = None
    is_stored: bool = True
    """Whether the credential is stored now."""


class RefusedError(MusterError):
    """A credential could not be obtained. `condition` is the condition to report on the add-on."""

    reason = "ServiceUnavailable"

    def __init__(self, error: MusterError, condition: Condition) -> None:
        super().__init__(error.message, retry_after=error.retry_after)
        self.condition = condition


class AddOnCredential(Protocol):
    target: Slot
    """The secret of the credential."""

    async def reconcile(
        self, client: HubClient, addon: AddOn, clock: Clock, asked: "RenewalRequest | None" = None
    ) -> AddOnCheckResult:
        """Obtain the credential if necessary. Raises RefusedError. `clock` shows the hub's time.

        `asked`: the hub's request for an early renewal of certificates that the hub has signed; None: no request.
        """

    async def trust_hub_by(self, kubeconfig: bytes) -> None:
        """Replace the hub's kubeconfig in the secret, if it contains one. Change nothing else."""

    async def forget(self) -> None:
        """Delete the pending request, if there is one."""


def credential_for(addon: AddOn, entry: AddOnRegistration, secret: str, shared: AddOnContext) -> AddOnCredential:
    target, extra = Slot(shared.secrets(addon), secret), {CLUSTER_NAME: shared.agent.cluster.encode()}
    if entry.for_hub and entry.driver == TOKEN:
        return TokenCredential(addon, target, {**extra, KUBECONFIG: by_token_file(shared.kubeconfig)}, shared)
    extra[KUBECONFIG if entry.for_hub else HUB_ID] = shared.kubeconfig if entry.for_hub else (shared.hub_id or "").encode()
    return CertificateCredential(addon, entry, target, extra, shared)


class CertificateCredential(AddOnCredential):
    """A certificate of an add-on, renewed like the certificate of the agent."""

    def __init__(
        self, addon: AddOn, entry: AddOnRegistration, target: Slot, extra: Mapping[str, bytes], shared: AddOnContext
    ) -> None:
        self.target = target
        self._entry = entry
        self._extra = dict(extra)
        self._pending = shared.pending(target.name)
        self._wanted = WantedCertificate(shared.agent, entry.subject, shared.duration, addon=(addon.name, entry.signer_name))
        self._flow = self._new_flow()
        self._resumed = False

    def _new_flow(self) -> CSRFlow:
        return CSRFlow(self._wanted, pending=self._pending, target=self.target, extra=self._extra)

    async def reconcile(
        self, client: HubClient, addon: AddOn, clock: Clock, asked: RenewalRequest | None = None
    ) -> AddOnCheckResult:
        del addon
        asked = asked if self._entry.for_hub else None
        if not self._flow.is_under_way:
            good_for = self._good_for(await self._known(), clock, asked)
            if good_for > timedelta():
                return AddOnCheckResult(good_for)
        if not self._resumed:
            self._flow.resume(await self._pending.read())
            self._resumed = True
        try:
            async with asyncio.timeout(DECISION_TIMEOUT.total_seconds()):
                leaf = await self._flow.run(client)
        except TimeoutError:
            return AddOnCheckResult(RETRY, is_stored=False)
        except MusterError as error:
            raise RefusedError(error, rotation_failed_condition(error.message)) from error
        self._flow = self._new_flow()
        return AddOnCheckResult(_until_due(leaf, clock, asked), rotated_condition(leaf))

    async def trust_hub_by(self, kubeconfig: bytes) -> None:
        if KUBECONFIG in self._extra:
            self._extra[KUBECONFIG] = kubeconfig  # a flow in progress then stores the new kubeconfig
            await self._known()

    async def forget(self) -> None:
        await self._pending.delete()

    async def _known(self) -> Contents:
        """Read the secret; replace a kubeconfig that differs only in the hub's CAs. The certificate stays."""
        contents = await self.target.read()
        ours, theirs = self._extra.get(KUBECONFIG, b""), contents.get(KUBECONFIG, b"")
        if ours == theirs or not is_same_but_for_trust(ours, theirs):
            return contents
        return await self.target.change(lambda present: {**present, KUBECONFIG: ours})

    def _good_for(self, contents: Contents, clock: Clock, asked: RenewalRequest | None) -> timedelta:
        """Return the time for which the stored certificate needs no replacement; zero: it is due."""
        if TOKEN_FILE in contents or any(contents.get(key) != value for key, value in self._extra.items() if key != HUB_ID):
            return timedelta()
        if contents.get(HUB_ID, self._extra.get(HUB_ID)) != self._extra.get(HUB_ID):
            return timedelta()  # the signer of another hub has issued the certificate
        try:
            chain = parse_chain(contents.get(CERTIFICATE, b""))
            key = public_key_of(contents.get(KEY, b""))
        except InvalidError:
            return timedelta()
        if chain[0].subject != self._entry.subject or chain[0].public_key != key or validity(chain, clock.now()):
            return timedelta()
        return _until_due(chain[0], clock, asked)


class TokenCredential(AddOnCredential):
    """A token of the add-on's ServiceAccount on the hub, replaced when a fifth of its lifetime is left."""

    def __init__(self, addon: AddOn, target: Slot, extra: Mapping[str, bytes], shared: AddOnContext) -> None:
        self.target = target
        self._addon = addon.name
        self._extra = dict(extra)
        self._cluster = shared.agent.cluster
        self._lifetime = shared.options.token_lifetime
        self._unsaved: AddOnToken | None = None

    async def reconcile(
        self, client: HubClient, addon: AddOn, clock: Clock, asked: RenewalRequest | None = None
    ) -> AddOnCheckResult:
        del asked  # the request is for certificates, not for tokens
        if not addon.account_uid:
            return AddOnCheckResult(RETRY, is_stored=False)  # the hub creates the ServiceAccount and reports it
        contents = await self.target.read()
        stored = unverified_claims(contents.get(TOKEN_FILE, b"").decode(errors="replace"))
        due = token_due(stored, addon.account_uid)
        if due is not None and clock.now() < due:
            await self._complete(contents, contents[TOKEN_FILE])
            return AddOnCheckResult(due - clock.now())
        try:
            self._unsaved = self._unsaved or await client.addon_token(self._cluster, self._addon, self._lifetime)
            token = self._unsaved
            await self._complete(contents, token.token.encode())
        except MusterError as error:
            raise RefusedError(error, token_failed_condition(error.message)) from error
        self._unsaved = None
        due = token_due(unverified_claims(token.token), addon.account_uid) or token.expires_at
        return AddOnCheckResult(max(due - clock.now(), RETRY), token_refreshed_condition(token.expires_at))

    async def trust_hub_by(self, kubeconfig: bytes) -> None:
        self._extra[KUBECONFIG] = by_token_file(kubeconfig)
        contents = await self.target.read()
        if contents.get(TOKEN_FILE):
            await self._complete(contents, contents[TOKEN_FILE])

    async def forget(self) -> None:
        self._unsaved = None

    async def _complete(self, contents: Contents, token: bytes) -> None:
        """Store the token with the other keys, and remove a certificate. Write nothing if the contents do not change."""
        filled = {**self._extra, TOKEN_FILE: token}
        wanted = {**{key: value for key, value in contents.items() if key not in (CERTIFICATE, KEY, RECOVERY)}, **filled}
        if dict(contents) != wanted:
            await self.target.change(lambda _: wanted)


def _until_due(leaf: CertificateFacts, clock: Clock, asked: RenewalRequest | None) -> timedelta:
    due = rotate_at(leaf.serial, leaf.not_before, leaf.not_after)
    sooner = asked.renewal.addon_due(leaf.serial, leaf.not_before, asked.received_at) if asked is not None else None
    return max(min(due, sooner or due) - clock.now(), timedelta())
