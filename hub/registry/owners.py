"""Use cases about the owner of a cluster's agent: this hub, or another hub that the agent reports.

The agent numbers its changes of owner with epochs. Messages with a lower epoch than the highest stored epoch change nothing. An
agent without epochs (0) is never outdated. Hubs do not communicate with each other. An epoch is a time in milliseconds. The hub
refuses an epoch too far ahead (AHEAD) of the database's clock, because all messages with correct epochs would be outdated.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hub.api.certificates import CertificateRecord, Purpose, own_agent as latest_agent
from hub.api.liveness import LastBeat
from hub.api.managed_fields import AGENT_WRITER
from hub.api.managedclusters import agent_annotations, cluster as cluster_rules, duplicates
from hub.api.managedclusters.availability import Departure, silence_condition
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.ports import Transaction
from hub.registry.liveness import heartbeats
from hub.registry.managedclusters import service as clusters
from machinery.errors import AlreadyExistsError, BadRequestError, DenialCause, ForbiddenError
from machinery.identity import AgentId, ClusterName, HubId
from machinery.meta.objects import Key, StoredObject

AHEAD = timedelta(hours=24)
"""How far an epoch may be ahead of the hub's clock. Agents create epochs at most an hour ahead of their own clock."""
RETURNS_WITHIN = timedelta(seconds=30)
"""If a cluster has two agents, the first agent can return within this time after its last beat. After this time the second
agent gets the session."""
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """Answer to an agent on standby. `epoch`: the highest epoch that this hub has stored."""

    accepted: bool
    epoch: int


class SecondAgentError(AlreadyExistsError):
    """Another agent has the session of the cluster."""

    def __init__(self, cluster: ClusterName, holder: AgentId, other: AgentId) -> None:
        super().__init__(duplicates.second_agent_error(cluster, holder, other).message)
        self.holder = holder
        self.other = other


def check(tx: Transaction, cluster: ClusterName, epoch: int, agent: AgentId | None = None) -> LastBeat | None:
    """Return the cluster's last beat. Raises StaleEpochError if the epoch belongs to a former owner.

    Raises BadRequestError (invalid epoch), SecondAgentError if another agent than `agent` has a session (None: no check).
    """
    _check_epoch(tx, epoch)
    last = tx.heartbeats.of(cluster)
    if agent is not None:
        check_agent(tx, cluster, agent, last)
    if last is not None and last.outdates(epoch):
        raise heartbeats.stale_epoch_error(last.epoch)
    return last


def check_agent(tx: Transaction, cluster: ClusterName, agent: AgentId, last: LastBeat | None) -> None:
    """Raise SecondAgentError if another agent has a session on any replica, or may return within RETURNS_WITHIN.

    An agent may return only if the refusal of the second agent is recorded. `last`: the cluster's last beat.
    """
    holder: AgentId | None = None
    if last is not None and last.session is not None:
        if any(held.agent != agent for held in tx.agent_sessions.of(cluster)):
            holder = session_agent(tx, cluster, tx.certificates.of_cluster(cluster))
    elif last is not None and last.at is not None and tx.now - last.at < RETURNS_WITHIN:
        stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
        first = duplicates.holder_of(stored.document) if stored is not None else None
        if first not in (None, agent):
            standing = (record.agent for record in tx.certificates.of_cluster(cluster) if record.is_open(tx.now))
            holder = first if first in standing else None
    if holder not in (None, agent):
        raise SecondAgentError(cluster, holder, agent)


def session_agent(tx: Transaction, cluster: ClusterName, records: Sequence[CertificateRecord]) -> AgentId | None:
    """Return the agent with the cluster's oldest session and a valid certificate; None: no such agent."""
    standing = {record.agent for record in records if record.purpose is Purpose.AGENT and record.is_open(tx.now)}
    held = sorted(tx.agent_sessions.of(cluster), key=lambda each: (each.at, each.session))
    return next((each.agent for each in held if each.agent in standing), None)


def own_agent(tx: Transaction, cluster: ClusterName) -> AgentId | None:
    """Return the cluster's agent: if there are several, the agent with the session, else the agent that registered last."""
    records = tx.certificates.of_cluster(cluster)
    latest = latest_agent(records)
    if all(record.agent in (None, latest) for record in records):
        return latest
    return session_agent(tx, cluster, records) or latest


def note_second(tx: Transaction, cluster: ClusterName, holder: AgentId, other: AgentId, actor: str) -> None:
    """Record the refusal of a second agent, unless the condition ManagedClusterDuplicated already has another reason."""
    stored = clusters.find(tx, cluster)
    if duplicates.reason(stored.document) in ("", duplicates.TWO_AGENTS):
        clusters.put_changed(tx, duplicates.with_refusal(stored.document, holder, other, tx.now), stored, actor)


def is_claimed(tx: Transaction, cluster: ClusterName, epoch: int, agent: AgentId | None = None) -> bool:
    """Whether `claim` has nothing to write. Raises StaleEpochError, BadRequestError.

    Raises SecondAgentError if another agent than `agent` has a session.
    """
    last = check(tx, cluster, epoch, agent)
    return epoch == 0 if last is None else last.owner is None and epoch <= last.epoch


def claim(tx: Transaction, cluster: ClusterName, epoch: int) -> None:
    """Record this hub as owner when the agent opens a session. Raises StaleEpochError, BadRequestError."""
    if not is_claimed(tx, cluster, epoch):
        tx.heartbeats.claim(cluster, epoch)


def record_handover(tx: Transaction, departure: Departure, epoch: int, actor: str) -> None:
    """Record that the agent with `epoch` moves to another hub. Raises StaleEpochError, BadRequestError, NotFoundError."""
    _check_departure(tx, departure)
    check(tx, departure.cluster, epoch)
    _depart(tx, clusters.find(tx, departure.cluster), departure, actor)


def stand_by(tx: Transaction, departure: Departure, cluster_uid: str, hub: HubId, actor: str) -> StandbyStatus:
    """Record the owner that an agent on standby reports: another hub, or none yet. `hub`: the id of this hub.

    Nothing changes if a higher epoch is stored, or a session of the same epoch is open here. Raises NotFoundError,
    ForbiddenError (denied cluster) and AlreadyExistsError (another cluster has the name, or another agent has the session).
    """
    _check_departure(tx, departure)
    stored = clusters.find(tx, departure.cluster)
    check_same(stored, cluster_uid)
    if cluster_rules.is_denied(stored.document):
        raise denied_error(stored.key.name, cluster_rules.denial_of(stored.document))
    last = tx.heartbeats.of(departure.cluster)
    if departure.agent is not None:
        check_agent(tx, departure.cluster, departure.agent, last)
    known = last.epoch if last else 0
    is_here = last is not None and last.owner is None and last.session is not None and departure.epoch == known
    if departure.owner == hub:
        tx.heartbeats.claim(departure.cluster, departure.epoch)
    elif departure.epoch >= known and not is_here:
        _depart(tx, stored, departure, actor)
    return StandbyStatus(cluster_rules.is_accepted(stored.document), max(known, departure.epoch))


def report_hubs(tx: Transaction, cluster: ClusterName, epoch: int, annotation: str, actor: str) -> None:
    """Store the agent's encoded hub list; no write if unchanged. Raises NotFoundError, StaleEpochError."""
    check(tx, cluster, epoch)
    stored = clusters.find(tx, cluster)
    clusters.put_changed(tx, agent_annotations.with_hubs(stored.document, annotation), stored, actor, writer=AGENT_WRITER)


def lower_epochs(tx: Transaction, cluster: ClusterName | None = None) -> int:
    """Set stored epochs that are more than AHEAD in the future to the current time; for one `cluster`, every future epoch.

    Returns the number of lowered epochs. Agents raise their epochs themselves. For one cluster, call this only in a transaction
    that ends its certificates.
    """
    present = _epoch_at(tx.now)
    return tx.heartbeats.lower_epochs(present, above=present if cluster else _epoch_at(tx.now + AHEAD), cluster=cluster)


def check_same(stored: StoredObject, cluster_uid: str) -> None:
    """Raise AlreadyExistsError if the name belongs to a cluster with another uid."""
    if not cluster_rules.is_same_cluster(stored.document, cluster_uid):
        raise AlreadyExistsError(f'the cluster name "{stored.key.name}" belongs to another cluster (its uid differs)')


def denied_error(name: str, reason: str | None = None) -> ForbiddenError:
    why = f" ({reason[: cluster_rules.MAX_REASON]})" if reason else ""
    message = f'cluster "{name}" is denied{why}: an operator accepts it again with `hubctl accept {name}`'
    return ForbiddenError(message, causes=DenialCause.CLUSTER_DENIED.because(message))


def _depart(tx: Transaction, stored: StoredObject, departure: Departure, actor: str) -> None:
    """Record the owner that `departure` names.

    A cluster that was never accepted shows the owner only after acceptance (`silence`).
    """
    last = tx.heartbeats.of(departure.cluster)
    if last is None or last.owner != departure.owner or last.epoch < departure.epoch:
        tx.heartbeats.depart(departure.cluster, departure.owner, departure.epoch)
    if cluster_rules.was_ever_accepted(stored.document) and not doc.is_deleting(stored.document):
        condition = silence_condition(departure.owner, heard=last is not None and last.at is not None)
        new = doc.with_status_condition(stored.document, condition, tx.now)
        if departure.owner and agent_annotations.move_to(stored.document) == departure.owner:
            new = agent_annotations.ordered(new, "")
        clusters.put_changed(tx, new, stored, actor)


def _check_departure(tx: Transaction, departure: Departure) -> None:
    _check_epoch(tx, departure.epoch)
    if departure.owner and not HUB_ID.fullmatch(departure.owner):
        raise BadRequestError(f'"{departure.owner[:80]}" is not a valid hub id')


def _check_epoch(tx: Transaction, epoch: int) -> None:
    if epoch > (highest := _epoch_at(tx.now + AHEAD)):
        raise BadRequestError(
            f"epoch {epoch} is too high: at most {highest}, {AHEAD / timedelta(hours=1):g} h ahead of this hub's clock; "
            "set the clock of the agent's machine, and restart the agent"
        )


def _epoch_at(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
