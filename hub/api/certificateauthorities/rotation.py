"""Decides which steps of a CA rotation are due, and lists what the next step waits for. Pure functions of one snapshot.

    condition                                                   effect
    no CA is distributing, the issuing CA must be replaced      make another CA
    distributing: every replica has the key, every agent that   it issues; the previous CA is outgoing
      reports its trusted CAs trusts this CA
    outgoing: every agent holds a certificate of another CA,    it is retiring: `Recover` only
      and operators hold none of this CA
    retiring: its time has ended                                retired

A step waits for absent agents for a configured time (the patience), counted from the start of the phase; later these agents
return by `Recover`. With the order to proceed, a step waits for no agents, but still for replicas that lack the key. A
compromised CA waits only for connected agents that can still renew, in two phases of length `within`: to trust the next CA, and
to renew. The second phase has its own time, so that an unresponsive agent in the first phase does not shorten it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityOrder, AuthorityRecord, Follower, Phase, issuing
from hub.api.certificates import Purpose
from machinery.identity import AgentId, ClusterName

WITH_PEOPLE = (Purpose.OPERATOR, Purpose.BOOTSTRAP, Purpose.LOGIN)
"""Purposes of certificates that people must renew; a step waits for these certificates as long as for absent agents."""


class Act(StrEnum):
    MAKE = "make"
    ISSUE = "issue"
    RETIRE = "retire"
    END = "end"


@dataclass(frozen=True, slots=True)
class RotationStep:
    """One step of a rotation: the act and its CA. For MAKE, the CA is the one to replace."""

    act: Act
    authority: AuthorityId


@dataclass(frozen=True, slots=True)
class RotationAgent:
    """The agent of one accepted cluster. `signer`: the CA of its certificate; None: none of the hub's CAs."""

    cluster: ClusterName
    agent: AgentId
    signer: AuthorityId | None
    connected: bool = False
    """The agent has a session, so that it can receive and answer requests."""
    away: bool = False
    """The availability of the agent's cluster is Unknown."""
    silent: bool = False
    """The agent has a session, but has sent no beat for longer than its lease duration."""
    trusted: frozenset[str] | None = None
    """Fingerprints of the CAs that the agent reports as trusted; None if the agent does not report its CAs."""

    @property
    def can_move(self) -> bool:
        """Whether the agent is connected and renews its certificate on request."""
        return self.connected and self.trusted is not None


@dataclass(frozen=True, slots=True)
class RotationSnapshot:
    """All that a rotation depends on, at one instant. `fingerprints`: hex SHA-256 of each CA's certificate."""

    now: datetime
    authorities: tuple[AuthorityRecord, ...]
    fingerprints: Mapping[AuthorityId, str]
    members: tuple[RotationAgent, ...] = ()
    signed: Mapping[AuthorityId, Mapping[Purpose, int]] = field(default_factory=dict)
    """Number of unexpired certificates per CA and purpose."""
    followers: tuple[Follower, ...] = ()
    living: frozenset[str] = frozenset()
    """Names of the serving replicas; of all replicas while the hub cannot know which replicas serve."""
    left_behind: Mapping[AuthorityId, tuple[ClusterName, ...]] = field(default_factory=dict)
    """Per compromised CA: clusters whose agent had only certificates of this CA and has no other certificate yet."""

    def of(self, phase: Phase) -> tuple[AuthorityRecord, ...]:
        return tuple(each for each in self.authorities if each.phase is phase)

    def lagging(self, authority: AuthorityRecord) -> tuple[str, ...]:
        """Return the replicas that do not apply the CA's phase yet, or lack its key although the CA signs or will sign."""
        needs_key = authority.phase in (Phase.DISTRIBUTING, Phase.ISSUING)
        current = {
            each.replica
            for each in self.followers
            if each.authority == authority.id and each.phase is authority.phase and (each.has_key or not needs_key)
        }
        return tuple(sorted(self.living - current))

    def without_trust(self, authority: AuthorityRecord) -> tuple[RotationAgent, ...]:
        """Return the agents that report their trusted CAs, and do not trust this CA."""
        fingerprint = self.fingerprints[authority.id]
        return tuple(each for each in self.members if each.trusted is not None and fingerprint not in each.trusted)

    def holding(self, authority: AuthorityRecord) -> tuple[RotationAgent, ...]:
        """Return the agents with a certificate of this CA."""
        return tuple(each for each in self.members if each.signer == authority.id)

    def held_by_users(self, authority: AuthorityRecord) -> int:
        """Return the number of unexpired certificates of this CA that no agent renews."""
        return sum(self.signed.get(authority.id, {}).get(purpose, 0) for purpose in WITH_PEOPLE)

    def renewable(self, authority: AuthorityRecord) -> tuple[RotationAgent, ...]:
        """Return the agents that have a certificate of this CA and can renew it on request."""
        return tuple(each for each in self.holding(authority) if each.can_move)

    def silent(self, authority: AuthorityRecord) -> tuple[RotationAgent, ...]:
        """Return those agents of `renewable` that currently send no beats."""
        return tuple(each for each in self.renewable(authority) if each.silent)

    def stranded_agents(self, authority: AuthorityRecord) -> tuple[RotationAgent, ...]:
        """Return the agents of `holding` that cannot renew. If this CA ends now, they need a new bootstrap credential."""
        return tuple(each for each in self.holding(authority) if not each.can_move)


def due_steps(seen: RotationSnapshot, patience: timedelta) -> tuple[RotationStep, ...]:
    """Return all steps that are due now. The steps are independent of each other."""
    old, coming = issuing(seen.authorities), seen.of(Phase.DISTRIBUTING)
    is_followed = old is not None and not coming and old.order in (AuthorityOrder.ROTATE, AuthorityOrder.COMPROMISED)
    made = (RotationStep(Act.MAKE, old.id),) if old is not None and is_followed else ()
    due = (RotationStep(act, each.id) for each in seen.authorities if (act := _due(seen, each, old, patience)) is not None)
    return (*made, *due)


def goes_by_time(seen: RotationSnapshot, step: RotationStep) -> bool:
    """Whether this step disables a CA because of elapsed time, not only because of an operator's order.

    A step of a compromised CA counts only if its agents got a limited time to renew and some of them can still renew.
    """
    one = next(each for each in seen.authorities if each.id == step.authority)
    if step.act not in (Act.RETIRE, Act.END) or one.order is AuthorityOrder.PROCEED:
        return False
    if not one.is_given_up:
        return True
    return one.phase is Phase.OUTGOING and one.ends_at is not None and bool(seen.renewable(one))


def _due(seen: RotationSnapshot, one: AuthorityRecord, old: AuthorityRecord | None, patience: timedelta) -> Act | None:
    """The act that is due for this CA. `old`: the issuing CA."""
    is_late = one.ends_at is None or seen.now >= one.ends_at
    is_ordered, is_over = one.order is AuthorityOrder.PROCEED, seen.now - one.since > patience
    match one.phase:
        case Phase.DISTRIBUTING if one.is_given_up:
            return Act.END
        case Phase.DISTRIBUTING if not seen.lagging(one):
            distrusting = seen.without_trust(one)
            if old is None or not old.is_given_up:
                may_issue = is_ordered or _is_enough(distrusting, is_over)
            else:
                # wait for agents of a compromised CA that do not trust the next CA yet
                until = max(old.ends_at, one.since + (old.within or timedelta())) if old.ends_at is not None else one.since
                may_issue = seen.now >= until or not any(each.connected for each in distrusting)
            return Act.ISSUE if may_issue else None
        case Phase.OUTGOING if one.is_given_up:
            return Act.END if is_late or not any(each.connected for each in seen.holding(one)) else None
        case Phase.OUTGOING if not any(seen.lagging(each) for each in (one, *seen.of(Phase.ISSUING))):
            is_unused = _is_enough(seen.holding(one), is_over) and (is_over or not seen.held_by_users(one))
            return Act.RETIRE if is_ordered or is_unused else None
        case Phase.RETIRING:
            left = seen.signed.get(one.id, {}).get(Purpose.RECOVERY, 0)
            has_ended = one.ends_at is not None and is_late
            return Act.END if one.is_given_up or is_ordered or not left or has_ended else None
        case _:
            return None


def moved_until(old: AuthorityRecord, now: datetime) -> datetime | None:
    """Return the end of the agents' time to renew if the compromised CA `old` stops issuing `now`; None: no wait for agents."""
    return now + old.within if old.ends_at is not None and old.within is not None else None


def _is_enough(missing: Collection[RotationAgent], patient: bool) -> bool:  # noqa: FBT001 - a private rule
    """Whether a step waits for none of these agents: there are none, or all are away and the patience has ended."""
    return not missing or (patient and all(each.away for each in missing))


def waits_for(seen: RotationSnapshot, one: AuthorityRecord, patience: timedelta) -> tuple[str, ...]:
    """Return what the next step of the CA `one` waits for, as texts; empty if the step is due or the CA has no next step."""
    is_patient = seen.now - one.since <= patience
    reasons = [f"replica {name} does not apply the phase yet, or lacks the key" for name in seen.lagging(one)]
    match one.phase:
        case Phase.DISTRIBUTING:
            reasons += _of_agents(seen.without_trust(one), "that do not trust it yet", patience=is_patient)
        case Phase.OUTGOING:
            reasons += _of_agents(seen.holding(one), "that hold a certificate of it", patience=is_patient)
            if is_patient and (left := seen.held_by_users(one)):
                reasons.append(f"{left} certificates of it that operators hold, or that are bootstrap credentials")
        case Phase.RETIRING:
            if left := seen.signed.get(one.id, {}).get(Purpose.RECOVERY, 0):
                reasons.append(f"{left} recovery certificates of it that have not expired")
        case _:
            return ()
    return tuple(reasons)


def _of_agents(members: Collection[RotationAgent], what: str, *, patience: bool) -> list[str]:
    away = sum(each.away for each in members)
    here = len(members) - away
    reasons = [f"{here} agents {what}"] if here else []
    return [*reasons, f"{away} absent agents {what}"] if away and patience else reasons
