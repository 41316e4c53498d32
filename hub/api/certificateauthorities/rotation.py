"""When the next step of a change of CA is due, and what it waits for: decided from one look at everything.

    nobody distributing, and the issuing one is to go     make another
    distributing, every replica has its key, every        let it issue; the one before is outgoing
      agent that can be told trusts it
    outgoing, every agent holds a certificate of          retire it: what it signed opens Recover alone
      another, and people have none of it
    retiring, and its time is over                        retired

Agents that are away hold a step up for the patience that an operator set, counted from the beginning of the phase; then they
come back by `Recover`. The operator's word to proceed passes over agents, and never over a replica that lacks the key. A
compromised CA waits for those alone that are connected and can still be moved, in two phases that have `within` each: to trust
the next one, and to renew. So an agent that does not answer takes from no other the time to renew.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityOrder, AuthorityRecord, Follower, Phase, issuing
from hub.api.certificates.certificate import Purpose
from machinery.identity import AgentId, ClusterName

WITH_PEOPLE = (Purpose.OPERATOR, Purpose.BOOTSTRAP, Purpose.LOGIN)
"""Nobody renews these by himself, and some are copied to other machines: they are waited for, while there is patience."""


class Act(StrEnum):
    """What the leader does."""

    MAKE = "make"
    ISSUE = "issue"
    RETIRE = "retire"
    END = "end"


MOVE = timedelta(seconds=60)
"""For each of the phases in which agents leave a compromised CA, where a release gave it up that kept one time for both."""


@dataclass(frozen=True, slots=True)
class RotationStep:
    """The act, and the CA that it is done to; of MAKE the one that another is to follow."""

    act: Act
    authority: AuthorityId


@dataclass(frozen=True, slots=True)
class Member:
    """The agent of one accepted cluster. `signer`: of the certificate that it holds; None: not one of the hub's CAs."""

    cluster: ClusterName
    agent: AgentId
    signer: AuthorityId | None
    connected: bool = False
    """It has a session: it is told at once, and can answer."""
    away: bool = False
    """Nothing is known of its cluster now."""
    silent: bool = False
    """It has a session, and no beat came for longer than its lease."""
    trusted: frozenset[str] | None = None
    """The fingerprints of the CAs that it says it trusts; None: it says nothing of it."""

    @property
    def can_move(self) -> bool:
        """It is there, and takes another certificate when it is asked to."""
        return self.connected and self.trusted is not None


@dataclass(frozen=True, slots=True)
class RotationSurvey:
    """One look. `fingerprints`: hex SHA-256 of each CA's certificate."""

    now: datetime
    authorities: tuple[AuthorityRecord, ...]
    fingerprints: Mapping[AuthorityId, str]
    members: tuple[Member, ...] = ()
    signed: Mapping[AuthorityId, Mapping[Purpose, int]] = field(default_factory=dict)
    """How many certificates of each CA have not ended."""
    followers: tuple[Follower, ...] = ()
    living: frozenset[str] = frozenset()
    """The replicas that serve, as far as can be told."""
    left_behind: Mapping[AuthorityId, tuple[ClusterName, ...]] = field(default_factory=dict)
    """Of each CA that was given up: the clusters whose agent had no other certificate, and has none since."""

    def of(self, phase: Phase) -> tuple[AuthorityRecord, ...]:
        return tuple(each for each in self.authorities if each.phase is phase)

    def lagging(self, authority: AuthorityRecord) -> tuple[str, ...]:
        """The replicas that do not act upon its phase yet, or lack its key where it is to sign."""
        needs_key = authority.phase in (Phase.DISTRIBUTING, Phase.ISSUING)
        current = {
            each.replica
            for each in self.followers
            if each.authority == authority.id and each.phase is authority.phase and (each.has_key or not needs_key)
        }
        return tuple(sorted(self.living - current))

    def untold(self, authority: AuthorityRecord) -> tuple[Member, ...]:
        """The agents that say whom they trust, and not this one."""
        mark = self.fingerprints[authority.id]
        return tuple(each for each in self.members if each.trusted is not None and mark not in each.trusted)

    def holding(self, authority: AuthorityRecord) -> tuple[Member, ...]:
        """The agents whose certificate is of this one."""
        return tuple(each for each in self.members if each.signer == authority.id)

    def with_people(self, authority: AuthorityRecord) -> int:
        """How many certificates of it people have that are good still."""
        return sum(self.signed.get(authority.id, {}).get(purpose, 0) for purpose in WITH_PEOPLE)

    def movable(self, authority: AuthorityRecord) -> tuple[Member, ...]:
        """Who holds a certificate of it, and takes another when it is asked to."""
        return tuple(each for each in self.holding(authority) if each.can_move)

    def silent(self, authority: AuthorityRecord) -> tuple[Member, ...]:
        """Who could be moved from it, if it answered."""
        return tuple(each for each in self.movable(authority) if each.silent)

    def stranded(self, authority: AuthorityRecord) -> tuple[Member, ...]:
        """Who needs a new bootstrap credential when this CA goes at once: it holds a certificate of it, and cannot be moved."""
        return tuple(each for each in self.holding(authority) if not each.can_move)


def due_steps(seen: RotationSurvey, patience: timedelta) -> tuple[RotationStep, ...]:
    """All that are due now, each whatever becomes of the others; nothing: none is, or something is waited for."""
    old, coming = issuing(seen.authorities), seen.of(Phase.DISTRIBUTING)
    is_followed = old is not None and not coming and old.wish in (AuthorityOrder.ROTATE, AuthorityOrder.COMPROMISED)
    made = (RotationStep(Act.MAKE, old.id),) if old is not None and is_followed else ()
    due = (RotationStep(act, each.id) for each in seen.authorities if (act := _due(seen, each, old, patience)) is not None)
    return (*made, *due)


def goes_by_time(seen: RotationSurvey, step: RotationStep) -> bool:
    """Whether a CA loses something by this step because so much time has passed, and not by an operator's word alone.

    What an operator gives up goes by time where agents are left that were given a while to move, and still could.
    """
    one = next(each for each in seen.authorities if each.id == step.authority)
    if step.act not in (Act.RETIRE, Act.END) or one.wish is AuthorityOrder.PROCEED:
        return False
    if not one.is_given_up:
        return True
    return one.phase is Phase.OUTGOING and one.ends_at is not None and bool(seen.movable(one))


def _due(seen: RotationSurvey, one: AuthorityRecord, old: AuthorityRecord | None, patience: timedelta) -> Act | None:
    match one.phase:
        case Phase.DISTRIBUTING if one.is_given_up:
            return Act.END
        case Phase.DISTRIBUTING if _may_issue(seen, one, old, patience):
            return Act.ISSUE
        case Phase.OUTGOING if one.is_given_up:
            return Act.END if _may_go_at_once(seen, one) else None
        case Phase.OUTGOING if _may_retire(seen, one, patience):
            return Act.RETIRE
        case Phase.RETIRING if _is_over(seen, one):
            return Act.END
        case _:
            return None


def _may_issue(seen: RotationSurvey, new: AuthorityRecord, old: AuthorityRecord | None, patience: timedelta) -> bool:
    if seen.lagging(new):
        return False
    if old is not None and old.is_given_up:
        return seen.now >= _trusted_until(old, new) or not any(each.connected for each in seen.untold(new))
    return new.wish is AuthorityOrder.PROCEED or _is_enough(seen.untold(new), seen.now - new.since > patience)


def _trusted_until(old: AuthorityRecord, new: AuthorityRecord) -> datetime:
    """Until when agents of a compromised CA are waited for that do not trust the next one yet."""
    return max(old.ends_at, new.since + (old.within or timedelta())) if old.ends_at is not None else new.since


def moved_until(old: AuthorityRecord, now: datetime) -> datetime | None:
    """Until when agents of a compromised CA may renew, which issues no more from `now` on, however late that is."""
    return now + (old.within or MOVE) if old.ends_at is not None else None


def _may_go_at_once(seen: RotationSurvey, old: AuthorityRecord) -> bool:
    return _is_late(seen, old) or not any(each.connected for each in seen.holding(old))


def _may_retire(seen: RotationSurvey, old: AuthorityRecord, patience: timedelta) -> bool:
    if any(seen.lagging(each) for each in (old, *seen.of(Phase.ISSUING))):
        return False
    if old.wish is AuthorityOrder.PROCEED:
        return True
    patient = seen.now - old.since > patience
    return _is_enough(seen.holding(old), patient) and (patient or not seen.with_people(old))


def _is_over(seen: RotationSurvey, old: AuthorityRecord) -> bool:
    if old.is_given_up or old.wish is AuthorityOrder.PROCEED:
        return True
    nothing_left = not seen.signed.get(old.id, {}).get(Purpose.RECOVERY, 0)
    return nothing_left or (old.ends_at is not None and seen.now >= old.ends_at)


def _is_late(seen: RotationSurvey, old: AuthorityRecord) -> bool:
    return old.ends_at is None or seen.now >= old.ends_at


def _is_enough(missing: Collection[Member], patient: bool) -> bool:  # noqa: FBT001 - a private rule
    """Whether a step can be made without these: there are none, or they have been away and the patience is over."""
    return not missing or (patient and all(each.away for each in missing))


def waits_for(seen: RotationSurvey, one: AuthorityRecord, patience: timedelta) -> tuple[str, ...]:
    """What the next step of this CA waits for, in words; nothing: it is due, or there is none."""
    lagging, is_patient = seen.lagging(one), seen.now - one.since <= patience
    told = [f"replica {name} does not act upon it yet, or lacks its key" for name in lagging]
    match one.phase:
        case Phase.DISTRIBUTING:
            told += _of_agents(seen.untold(one), "not trusting it yet", patient=is_patient)
        case Phase.OUTGOING:
            told += _of_agents(seen.holding(one), "holding a certificate of it", patient=is_patient)
            left = seen.with_people(one)
            told += (
                [f"{left} certificates of it that operators have, or that are bootstrap credentials"]
                if left and is_patient
                else []
            )
        case Phase.RETIRING:
            left = seen.signed.get(one.id, {}).get(Purpose.RECOVERY, 0)
            told += [f"{left} recovery certificates of it that have not ended"] if left else []
        case _:
            return ()
    return tuple(told)


def _of_agents(members: Collection[Member], what: str, *, patient: bool) -> list[str]:
    here, away = [each for each in members if not each.away], [each for each in members if each.away]
    told = [f"{len(here)} agents {what}"] if here else []
    return [*told, f"{len(away)} agents {what} that are away"] if away and patient else told
