"""An operator's orders to an agent: to move to another hub, and to renew its certificates early.

A certificate also has to be renewed while its CA is Outgoing.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from hub.api.certificateauthorities.authority import Phase, signer_of
from hub.api.certificates import CertificateRecord
from hub.api.managedclusters.agent_annotations import RenewalOrder
from hub.grpc_door.session.context import DoorContext
from machinery.wire.session.v1 import session_pb2 as wire

REASON = "an operator moves this cluster to another hub"


class Moving:
    """Moves of one session. The order is sent only if the agent lists the target hub as ready; else it could not follow it."""

    def __init__(self, send: Callable[[wire.HubMessage], None]) -> None:
        self._send = send
        self._ready: frozenset[str] = frozenset()
        self._target = ""
        self._asked = ""

    def listed(self, hubs: wire.Hubs) -> None:
        """Takes the agent's current hub list."""
        self._ready = frozenset(hub.hub_id for hub in hubs.hubs if hub.state == wire.Hub.STATE_READY and hub.hub_id)
        self._ask()

    def wanted(self, target: str) -> None:
        """Takes the hub id that the operator moves the cluster to; "": none."""
        self._target = target
        self._ask()

    def _ask(self) -> None:
        due = self._target if self._target in self._ready else ""
        if due and due != self._asked:
            self._send(wire.HubMessage(drain=wire.Drain(reason=REASON, target_hub_id=due)))
        self._asked = due


PER_SECOND = 20
"""Renewals per second of one replica's agents while a CA is Outgoing."""
SOONEST = timedelta(seconds=10)

Asked = tuple[RenewalOrder | None, bool]


class Renewing:
    """Renewal requests of one session, repeated in each Desired until the order or the CA's phase changes."""

    def __init__(self, parts: DoorContext, record: CertificateRecord) -> None:
        self._parts = parts
        self._record = record
        self._said: Asked = (None, False)

    def is_news(self, order: RenewalOrder | None) -> bool:
        return self._said != (order, is_outgoing(self._parts, self._record))

    def into(self, desired: wire.Desired, order: RenewalOrder | None) -> None:
        """Adds the request to the message Desired."""
        self._said = order, is_outgoing(self._parts, self._record)
        if (within := asked(self._parts, self._record, order, self._parts.clock.now())) is not None:
            desired.renew_within.FromTimedelta(within)
        if order is not None:
            desired.renew_addons_before.FromDatetime(order.before)


def asked(parts: DoorContext, record: CertificateRecord, order: RenewalOrder | None, now: datetime) -> timedelta | None:
    """Returns the time within which the certificate has to be renewed; None: no renewal is requested."""
    wanted = [order.left(now)] if order is not None and order.asks(record.issued_at) else []
    if is_outgoing(parts, record):
        wanted.append(max(SOONEST, timedelta(seconds=len(parts.sessions) / PER_SECOND)))
    return min(wanted, default=None)


def is_outgoing(parts: DoorContext, record: CertificateRecord) -> bool:
    """Whether the CA that signed the certificate is Outgoing: it signs nothing more and waits until it is not needed."""
    signer = signer_of(record.signed_by, parts.authorities())
    return signer is not None and signer.phase is Phase.OUTGOING
