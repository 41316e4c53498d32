"""Which agents are asked to renew their certificate ahead of its time: an operator ordered it, or its CA is on its way out."""

from datetime import datetime, timedelta

from hub.api.certificateauthorities.authority import Phase, signer_of
from hub.api.certificates.certificate import CertificateRecord
from hub.api.managedclusters.renewal import RenewalOrder
from hub.grpc_door.session.context import DoorContext
from machinery.wire.session.v1 import session_pb2 as wire

PER_SECOND = 20
"""Renewals of one replica's agents, where a CA goes."""
SOONEST = timedelta(seconds=10)

Asked = tuple[RenewalOrder | None, bool]


class Renewing:
    """Of one session. It says the same until the order is another, or the CA of the certificate goes."""

    def __init__(self, parts: DoorContext, record: CertificateRecord) -> None:
        self._parts = parts
        self._record = record
        self._said: Asked = (None, False)

    def is_news(self, order: RenewalOrder | None) -> bool:
        return self._said != (order, is_outgoing(self._parts, self._record))

    def into(self, desired: wire.Desired, order: RenewalOrder | None) -> None:
        """What the agent is told of it."""
        self._said = order, is_outgoing(self._parts, self._record)
        if (within := asked(self._parts, self._record, order, self._parts.clock.now())) is not None:
            desired.renew_within.FromTimedelta(within)
        if order is not None:
            desired.renew_addons_before.FromDatetime(order.before)


def asked(parts: DoorContext, record: CertificateRecord, order: RenewalOrder | None, now: datetime) -> timedelta | None:
    """Within which time this certificate is to be renewed; None: it is not asked for."""
    wanted = [order.left(now)] if order is not None and order.asks(record.issued_at) else []
    if is_outgoing(parts, record):
        wanted.append(max(SOONEST, timedelta(seconds=len(parts.sessions) / PER_SECOND)))
    return min(wanted, default=None)


def is_outgoing(parts: DoorContext, record: CertificateRecord) -> bool:
    """Whether the CA that signed it signs nothing any more, and waits until nobody needs it."""
    signer = signer_of(record.signed_by, parts.authorities())
    return signer is not None and signer.phase is Phase.OUTGOING
