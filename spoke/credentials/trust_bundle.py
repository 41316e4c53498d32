"""The CAs with which the agent verifies a hub: parsing, checking, trying and storing a bundle that the hub announces.

The kubeconfig of a credential contains the CAs that are trusted now, because other programs mount it. If the bootstrap
kubeconfig contained other CAs at registration, the slot stores those too. The agent compares them with the bootstrap kubeconfig
and registers again only if the bootstrap kubeconfig has changed (`spoke.domain.credential`).
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import structlog

from machinery.errors import InvalidError, UnavailableError
from machinery.identity import HubId
from machinery.pki import CertificateFacts, parse_chain
from spoke.credentials.kubeconfigs import HubConnection, stored_hub, view_stored, with_authority
from spoke.credentials.slot import Contents, Slot
from spoke.domain.credential import KUBECONFIG, ORIGIN, validity
from spoke.ports.hub import Dial

MAX_CERTIFICATES = 16
TRIALS = 3
"""Number of failed connections with a bundle before the agent refuses it."""

log = structlog.get_logger(__name__)


def fingerprints(authorities: bytes) -> tuple[str, ...]:
    """Return the hex SHA-256 of each CA's DER, sorted. `authorities` is PEM; if it is unreadable, the result is empty."""
    with suppress(InvalidError):
        return tuple(sorted({each.fingerprint for each in parse_chain(authorities)}))
    return ()


def checked(bundle: bytes, now: datetime) -> tuple[CertificateFacts, ...]:
    """Return the CAs of an announced bundle. Raises InvalidError with the defect. `now` is the hub's time."""
    try:
        authorities = parse_chain(bundle)
    except InvalidError:
        raise InvalidError("the bundle contains no valid certificate") from None
    if len(authorities) > MAX_CERTIFICATES:
        raise InvalidError(f"the bundle contains {len(authorities)} certificates, more than the limit of {MAX_CERTIFICATES}")
    for each in authorities:
        if not each.is_ca:
            raise InvalidError(f'the bundle contains "{each.subject.common_name}", which is not a CA')
    if all(validity((each,), now) for each in authorities):
        raise InvalidError("every certificate of the bundle has ended, or has not begun")
    return authorities


async def tried(connection: HubConnection, bundle: bytes, dial: Dial) -> None:
    """Connect to the hub with `bundle` as the only trusted CAs. Raises InvalidError if they do not verify this hub.

    Raises UnavailableError if the hub is also unreachable with the present CAs. A single failure proves nothing, because a
    replica may end at that moment. So a bundle is refused only after TRIALS failures, each followed by a success with the
    present CAs.
    """
    for _ in range(TRIALS):
        if await _meets(connection, bundle, dial):
            return
        if not await _meets(connection, connection.address.ca, dial):
            raise UnavailableError("the hub cannot be reached, so that its bundle cannot be tried")
    raise InvalidError("with this bundle the hub could no longer be reached: none of its CAs verifies it")


async def _meets(connection: HubConnection, authorities: bytes, dial: Dial) -> bool:
    client = dial(replace(connection.address, ca=authorities), connection.identity)
    try:
        met = await client.info()
    except UnavailableError:
        return False  # TLS does not report the reason
    finally:
        await client.close()
    if met.hub_id and met.hub_id != connection.hub_id:
        raise InvalidError(f"with this bundle another hub answers: {met.hub_id}")
    return True


def with_trust_bundle(contents: Contents, bundle: bytes) -> Contents:
    """Return a credential that verifies its hub only with `bundle`. Raises InvalidError without a readable kubeconfig."""
    seen = view_stored(contents)
    if seen.hub is None:
        raise InvalidError("the stored kubeconfig cannot be read")
    kept = {key: content for key, content in contents.items() if key != ORIGIN}
    kubeconfig = with_authority(contents[KUBECONFIG], bundle)
    origin = seen.hub.grpc_ca or seen.hub.ca
    return {**kept, KUBECONFIG: kubeconfig, **({ORIGIN: origin} if origin != bundle else {})}


def known_by(connection: HubConnection, authorities: bytes) -> HubConnection:
    """Return the same connection with these CAs (PEM) for the hub. Raises InvalidError."""
    return replace(
        connection,
        kubeconfig=with_authority(connection.kubeconfig, authorities),
        address=replace(connection.address, ca=authorities),
        hub=replace(connection.hub, known=authorities),
    )


async def store_trust_bundle(place: Slot, bundle: bytes, hub: HubId) -> Contents:
    """Store `bundle` in `place`. Return the contents. If the credential is unreadable or not for `hub`, change nothing."""

    def edit(present: Contents) -> Contents:
        return with_trust_bundle(present, bundle) if _is_of(present, hub) else present

    contents = await place.read()
    return contents if edit(contents) == contents else await place.change(edit)


def _is_of(contents: Contents, hub: HubId) -> bool:
    with suppress(InvalidError):
        return stored_hub(contents) == hub
    return False


class StoredTrust:
    """Stores the CAs of one hub while the agent has no session with this hub."""

    def __init__(self, slot: Slot, hub: HubId, dial: Dial) -> None:
        self._slot = slot
        self._hub = hub
        self._dial = dial
        self._refused = b""

    async def update(self, connection: HubConnection, bundle: bytes, now: datetime) -> bool:
        """Check, try and store the CAs that a hub announces. Return whether the stored CAs changed.

        A refused bundle is logged once. Raises MusterError if the bundle cannot be tried or stored now.
        """
        if bundle == self._refused or fingerprints(bundle) == fingerprints(connection.address.ca):
            return False
        try:
            checked(bundle, now)
            await tried(connection, bundle, self._dial)
        except InvalidError as error:
            self._refused = bundle
            log.error("trust.refused", why=error.message)  # noqa: TRY400 - the message suffices
            return False
        await store_trust_bundle(self._slot, bundle, self._hub)
        log.info("standby.trusts", now=[each[:16] for each in fingerprints(bundle)])
        return True


def trust_in(contents: Contents, hub: HubConnection) -> Mapping[str, bytes]:
    """Return the CAs as entries of a secret: from `contents`, if it is a credential for the same hub, else from `hub`."""
    seen = view_stored(contents)
    if seen.hub is not None and seen.hub.hub_id == hub.hub.hub_id:
        return {key: contents[key] for key in (KUBECONFIG, ORIGIN) if key in contents}
    return hub.trust
