"""Issues ServiceAccount tokens of add-ons over gRPC, as TokenRequest of the HTTPS door does, for agents that use only gRPC."""

from datetime import UTC, datetime, timedelta
from typing import Protocol

from hub.access import session_holder
from hub.api.certificates import CertificateRecord
from hub.grpc_door.messages import asked_duration
from hub.ports import Store
from hub.registry.managedclusteraddons import tokens as addon_tokens
from machinery.errors import ForbiddenError, InvalidError
from machinery.identity import AddOnName, cluster_name
from machinery.runtime.clock import Clock
from machinery.wire.registration.v1 import registration_pb2 as wire

DEFAULT = timedelta(hours=1)
SHORTEST = timedelta(minutes=10)
LONGEST = timedelta(days=366)
"""Limits of the lifetime: the shortest is Kubernetes', the longest is the time for which an old signing key is kept."""


class AccountToken(Protocol):
    """Makes a token of the ServiceAccount `namespace`/`name` with this uid."""

    def __call__(self, namespace: str, name: str, uid: str, *, begin: datetime, end: datetime) -> str: ...


async def issue(
    request: wire.IssueAddOnTokenRequest, record: CertificateRecord, store: Store, make: AccountToken, clock: Clock
) -> wire.IssueAddOnTokenResponse:
    """Issues a token. Raises ForbiddenError for another cluster's agent, InvalidError, the errors of `addon_tokens.account`."""
    cluster, addon = cluster_name(request.cluster_name), AddOnName(request.addon_name)
    holder, _ = session_holder(record)
    if holder != cluster:
        raise ForbiddenError(f'this certificate is for cluster "{holder}" and cannot act for cluster "{cluster}"')
    asked = asked_duration(request.requested_duration) if request.HasField("requested_duration") else DEFAULT
    if asked < SHORTEST:
        shortest, short = SHORTEST.total_seconds(), asked.total_seconds()
        raise InvalidError(f"a token lives {shortest:.0f} s at least, and {short:.0f} s were asked for")
    account = await store.read(addon_tokens.account, cluster, addon)
    begin = clock.now().replace(microsecond=0)
    end = begin + min(asked, LONGEST)
    token = make(account.key.namespace, account.key.name, account.uid, begin=begin, end=end)
    answer = wire.IssueAddOnTokenResponse(token=token)
    answer.expires_at.FromDatetime(end.astimezone(UTC))
    return answer
