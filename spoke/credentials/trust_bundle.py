"""By which CAs a hub is known: read from what is stored, checked when the hub tells of others, tried, and written down.

The kubeconfig of a credential says what is trusted now, because others mount it. What the bootstrap kubeconfig said when the
agent registered is kept beside it where that was something else: a bootstrap kubeconfig that has not changed is no reason to
register anew (`spoke.domain.credential`). Earlier releases kept what they were told of in a key of its own; that is still read.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

import structlog

from machinery.client.kubeconfig import with_authority
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import HubId
from machinery.pki import CertificateFacts, parse_chain
from spoke.credentials.kubeconfigs import HubConnection, stored_hub, view_stored
from spoke.credentials.slot import Contents, Slot
from spoke.domain.credential import KUBECONFIG, ORIGIN, TRUST, validity
from spoke.ports import Dial

MOST = 16
"""CAs in one bundle."""
TRIALS = 3
"""Connections with a bundle that must fail before it is refused."""

log = structlog.get_logger(__name__)


def fingerprints(authorities: bytes) -> tuple[str, ...]:
    """Hex SHA-256 of the DER of each CA (PEM), sorted; none where they cannot be read."""
    with suppress(InvalidError):
        return tuple(sorted({each.fingerprint for each in parse_chain(authorities)}))
    return ()


def checked(bundle: bytes, now: datetime) -> tuple[CertificateFacts, ...]:
    """The CAs of a bundle that a hub told of. Raises InvalidError with what is wrong with it; `now` is the hub's time."""
    try:
        authorities = parse_chain(bundle)
    except InvalidError:
        raise InvalidError("the bundle holds no certificate that can be read") from None
    if len(authorities) > MOST:
        raise InvalidError(f"the bundle holds {len(authorities)} certificates, and at most {MOST} are taken")
    for each in authorities:
        if not each.is_ca:
            raise InvalidError(f'the bundle holds "{each.subject.common_name}", which is no certificate authority')
    if all(validity((each,), now) for each in authorities):
        raise InvalidError("every certificate of the bundle has ended, or has not begun")
    return authorities


async def tried(connection: HubConnection, bundle: bytes, dial: Dial) -> None:
    """Connect to the hub with `bundle` as the only trusted CAs. Raises InvalidError: it does not vouch for this hub.

    Raises UnavailableError when the hub cannot be reached by what is trusted now either. A replica may die between two
    connections, so a bundle is refused only after TRIALS failures, each followed by a success with the trusted CAs.
    """
    for _ in range(TRIALS):
        if await _meets(connection, bundle, dial):
            return
        if not await _meets(connection, connection.address.ca, dial):
            raise UnavailableError("the hub cannot be reached, so that its bundle cannot be tried")
    raise InvalidError("by that bundle this hub could not be reached any more: none of its CAs vouches for it")


async def _meets(connection: HubConnection, authorities: bytes, dial: Dial) -> bool:
    client = dial(replace(connection.address, ca=authorities), connection.identity)
    try:
        met = await client.info()
    except UnavailableError:
        return False  # TLS does not tell why
    finally:
        await client.close()
    if met.hub_id and met.hub_id != connection.hub_id:
        raise InvalidError(f"by that bundle another hub answers: {met.hub_id}")
    return True


def retrusted(contents: Contents, bundle: bytes) -> Contents:
    """A credential that knows its hub by `bundle` alone. Raises InvalidError where there is no kubeconfig that can be read."""
    seen = view_stored(contents)
    if seen.hub is None:
        raise InvalidError("there is no kubeconfig whose hub could be known otherwise")
    kept = {key: content for key, content in contents.items() if key not in (TRUST, ORIGIN)}
    kubeconfig = with_authority(contents[KUBECONFIG], bundle)
    origin = seen.hub.grpc_ca or seen.hub.ca
    return {**kept, KUBECONFIG: kubeconfig, **({ORIGIN: origin} if origin != bundle else {})}


def known_by(connection: HubConnection, authorities: bytes) -> HubConnection:
    """The same hub and the same identity, the hub known by these CAs (PEM). Raises InvalidError."""
    return replace(
        connection,
        kubeconfig=with_authority(connection.kubeconfig, authorities),
        address=replace(connection.address, ca=authorities),
        hub=replace(connection.hub, known=authorities),
    )


async def retrust(place: Slot, bundle: bytes, hub: HubId) -> Contents:
    """What lies there then. A credential of another hub, and one that cannot be read, is left as it is."""

    def edit(present: Contents) -> Contents:
        return retrusted(present, bundle) if _is_of(present, hub) else present

    contents = await place.read()
    return contents if edit(contents) == contents else await place.change(edit)


def _is_of(contents: Contents, hub: HubId) -> bool:
    with suppress(InvalidError):
        return stored_hub(contents) == hub
    return False


class StoredTrust:
    """What is known of one hub in its slot, where nobody holds a session with it."""

    def __init__(self, slot: Slot, hub: HubId, dial: Dial) -> None:
        self._slot = slot
        self._hub = hub
        self._dial = dial
        self._refused = b""

    async def told(self, connection: HubConnection, bundle: bytes, now: datetime) -> bool:
        """Keeps what a hub says of its CAs: by the time somebody comes here it may be another. Whether that was news.

        A bundle that is refused is told once. Raises MusterError: it cannot be tried, or kept, now.
        """
        if bundle == self._refused or fingerprints(bundle) == fingerprints(connection.address.ca):
            return False
        try:
            checked(bundle, now)
            await tried(connection, bundle, self._dial)
        except InvalidError as error:
            self._refused = bundle
            log.error("trust.refused", why=error.message)  # noqa: TRY400 - the sentence says it all
            return False
        await retrust(self._slot, bundle, self._hub)
        log.info("standby.trusts", now=[each[:16] for each in fingerprints(bundle)])
        return True


def trust_in(contents: Contents, hub: HubConnection) -> Mapping[str, bytes]:
    """What is stored of how this hub is known; else what the connection says."""
    seen = view_stored(contents)
    if seen.hub is not None and seen.hub.hub_id == hub.hub.hub_id:
        return {key: contents[key] for key in (KUBECONFIG, ORIGIN, TRUST) if key in contents}
    return hub.trust
