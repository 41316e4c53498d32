"""Use cases about who owns a cluster's agent: this hub, or another one that the agent says it reports to.

The agent gives its changes of hub an order, the epoch. The highest that was heard of decides, by whatever way it came; what
comes with a lower one changes nothing. An agent that keeps no epoch (0) is never outdated. Hubs never ask one another.
An epoch is a time in milliseconds: one too far ahead of the database's clock is refused, as it would outdate all others.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hub.api.certificates.certificate import CertificateRecord, Purpose
from hub.api.certificates.certificate import own_agent as latest_agent
from hub.api.liveness.heartbeat import LastBeat
from hub.api.managedclusters import agent_annotations as reported
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters import duplicates as duplicate
from hub.api.managedclusters.detach import Departure, parted
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Key, StoredObject
from hub.api.objects.managed_fields import HUB_WRITER
from hub.ports import Transaction
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import AlreadyExistsError, BadRequestError, DenialCause, ForbiddenError
from machinery.identity import AgentId, ClusterName, HubId

AHEAD = timedelta(hours=24)
"""An epoch further ahead than this is refused. Agents make none that is more than an hour ahead of their own clock."""
RETURNS_WITHIN = timedelta(seconds=30)
"""After its last beat, for the first of two agents."""
_UNIT = timedelta(milliseconds=1)
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True, slots=True)
class StandbyStanding:
    """What an agent in reserve is told. `epoch`: the highest that this hub has heard of."""

    accepted: bool
    epoch: int


def check(tx: Transaction, cluster: ClusterName, epoch: int) -> None:
    """Raises StaleEpochError when a write of this epoch comes from an owner that is over, BadRequestError."""
    _checked(tx, cluster, epoch)


class SecondAgentError(AlreadyExistsError):
    """Another agent of the cluster has its session."""

    def __init__(self, cluster: ClusterName, holder: AgentId, other: AgentId) -> None:
        super().__init__(duplicate.refused(cluster, holder, other).message)
        self.holder = holder
        self.other = other


def check_agent(tx: Transaction, cluster: ClusterName, agent: AgentId, last: LastBeat | None) -> None:
    """The first agent keeps the cluster while it has a session on any replica: no other speaks for it, nor raises its epoch.

    Where another one is known to wait for that, it has a moment to come back. `last`: the cluster's. Raises SecondAgentError.
    """
    holder: AgentId | None = None
    if last is not None and last.session is not None:
        if any(held.agent != agent for held in tx.agent_sessions.of(cluster)):
            holder = session_agent(tx, cluster, tx.certificates.of_cluster(cluster))
    elif last is not None and last.at is not None and tx.now - last.at < RETURNS_WITHIN:
        stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
        first = duplicate.holder_of(stored.document) if stored is not None else None
        if first not in (None, agent):
            standing = (record.agent for record in tx.certificates.of_cluster(cluster) if record.is_open(tx.now))
            holder = first if first in standing else None
    if holder not in (None, agent):
        raise SecondAgentError(cluster, holder, agent)


def session_agent(tx: Transaction, cluster: ClusterName, records: Sequence[CertificateRecord]) -> AgentId | None:
    """The agent whose session is the cluster's oldest, where its certificate stands; None: there is none."""
    standing = {record.agent for record in records if record.purpose is Purpose.AGENT and record.is_open(tx.now)}
    held = sorted(tx.agent_sessions.of(cluster), key=lambda each: (each.at, each.session))
    return next((each.agent for each in held if each.agent in standing), None)


def own_agent(tx: Transaction, cluster: ClusterName) -> AgentId | None:
    """The agent that speaks for the cluster: of several the one that has its session, else the one that came last."""
    records = tx.certificates.of_cluster(cluster)
    latest = latest_agent(records)
    if all(record.agent in (None, latest) for record in records):
        return latest
    return session_agent(tx, cluster, records) or latest


def note_second(tx: Transaction, cluster: ClusterName, holder: AgentId, other: AgentId, actor: str) -> None:
    """Shows that another agent wants a session, unless another reason is shown."""
    stored = clusters.find(tx, cluster)
    if duplicate.reason(stored.document) in ("", duplicate.TWO_AGENTS):
        new = duplicate.with_refusal(stored.document, holder, other, tx.now)
        if doc.differs(new, stored.document):
            clusters.put(tx, new, stored, actor, writer=HUB_WRITER)


def is_claimed(tx: Transaction, cluster: ClusterName, epoch: int, agent: AgentId | None = None) -> bool:
    """Whether `claim` would find nothing to write; `agent`: who wants it.

    Raises StaleEpochError, BadRequestError; SecondAgentError: another agent has a session.
    """
    last = _checked(tx, cluster, epoch, agent)
    return epoch == 0 if last is None else last.owner is None and epoch <= last.epoch


def claim(tx: Transaction, cluster: ClusterName, epoch: int) -> None:
    """The agent opens a session here. Raises StaleEpochError, BadRequestError."""
    if not is_claimed(tx, cluster, epoch):
        tx.heartbeats.claim(cluster, epoch)


def bid_farewell(tx: Transaction, departure: Departure, epoch: int, actor: str) -> None:
    """The agent ends its session of `epoch` to go to another hub. Raises StaleEpochError, BadRequestError, NotFoundError."""
    _check(tx, departure)
    check(tx, departure.cluster, epoch)
    _depart(tx, clusters.find(tx, departure.cluster), departure, actor)


def stand_by(tx: Transaction, departure: Departure, cluster_uid: str, hub: HubId, actor: str) -> StandbyStanding:
    """The agent holds its session with another hub, or with none yet, and keeps this one (`hub`) in reserve.

    Nothing changes where a higher epoch is known, nor where a session is open here in the same one.
    Raises NotFoundError; ForbiddenError: the cluster is denied; AlreadyExistsError: another cluster has the name, or another
    agent the session.
    """
    _check(tx, departure)
    stored = clusters.find(tx, departure.cluster)
    check_same(stored, cluster_uid)
    check_not_denied(stored)
    last = tx.heartbeats.of(departure.cluster)
    if departure.agent is not None:
        check_agent(tx, departure.cluster, departure.agent, last)
    known = last.epoch if last else 0
    is_here = last is not None and last.owner is None and last.session is not None and departure.epoch == known
    if departure.owner == hub:
        tx.heartbeats.claim(departure.cluster, departure.epoch)
    elif departure.epoch >= known and not is_here:
        _depart(tx, stored, departure, actor)
    return StandbyStanding(rules.is_accepted(stored.document), max(known, departure.epoch))


def lower_epochs(tx: Transaction, cluster: ClusterName | None = None) -> int:
    """Lowers epochs that no hub takes to the present; of one `cluster`: any ahead of it. Returns how many.

    Its agent goes above that by itself. Of one cluster only where its certificates end in the same transaction.
    """
    present = _epoch_at(tx.now)
    return tx.heartbeats.lower_epochs(present, above=present if cluster else _epoch_at(tx.now + AHEAD), cluster=cluster)


def check_same(stored: StoredObject, cluster_uid: str) -> None:
    """Raises AlreadyExistsError when the name belongs to a cluster with another uid."""
    if not rules.is_same_cluster(stored.document, cluster_uid):
        raise AlreadyExistsError(f'the cluster name "{stored.key.name}" belongs to another cluster (its uid differs)')


def check_not_denied(stored: StoredObject) -> None:
    """Raises ForbiddenError when the cluster was accepted once, and is not now."""
    if rules.is_denied(stored.document):
        raise denied(stored.key.name)


def denied(name: str) -> ForbiddenError:
    """What an agent is told whose cluster was accepted once."""
    message = f'cluster "{name}" is denied: an operator accepts it again with `hubctl accept {name}`'
    return ForbiddenError(message, causes=DenialCause.CLUSTER_DENIED.because(message))


def _depart(tx: Transaction, stored: StoredObject, departure: Departure, actor: str) -> None:
    """A cluster that nobody has judged yet says so once it is accepted (`heartbeats.silence`)."""
    last = tx.heartbeats.of(departure.cluster)
    if last is None or last.owner != departure.owner or last.epoch < departure.epoch:
        tx.heartbeats.depart(departure.cluster, departure.owner, departure.epoch)
    if rules.was_judged(stored.document) and not doc.is_deleting(stored.document):
        told = parted(departure.owner, heard=last is not None and last.at is not None)
        new = doc.with_status_condition(stored.document, told, tx.now)
        if departure.owner and reported.move_to(stored.document) == departure.owner:
            new = reported.ordered(new, "")
        if doc.differs(new, stored.document):
            clusters.put(tx, new, stored, actor, writer=HUB_WRITER)


def _checked(tx: Transaction, cluster: ClusterName, epoch: int, agent: AgentId | None = None) -> LastBeat | None:
    _check_epoch(tx, epoch)
    last = tx.heartbeats.of(cluster)
    if agent is not None:
        check_agent(tx, cluster, agent, last)
    if last is not None and last.outdates(epoch):
        raise heartbeats.outdated(last.epoch)
    return last


def _check(tx: Transaction, departure: Departure) -> None:
    _check_epoch(tx, departure.epoch)
    if departure.owner and not HUB_ID.fullmatch(departure.owner):
        raise BadRequestError(f'"{departure.owner[:80]}" is no id of a hub')


def _check_epoch(tx: Transaction, epoch: int) -> None:
    if epoch > (highest := _epoch_at(tx.now + AHEAD)):
        raise BadRequestError(
            f"epoch {epoch} is too high: at most {highest}, {AHEAD / timedelta(hours=1):g} h ahead of this hub's clock; "
            "set the clock of the agent's machine, and restart the agent"
        )


def _epoch_at(moment: datetime) -> int:
    return (moment - _BEGINNING) // _UNIT
