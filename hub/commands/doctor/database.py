"""Checks the database: reachability, schema, identity, leader, replicas and clock."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from hub.api.certificateauthorities.authority import issuing
from hub.api.hubreplicas import Replica
from hub.commands.doctor import DoctorFinding, broken, warning, well
from hub.issuer.key_storage import read_pairs
from hub.ports import HUB_ID, Transaction
from hub.replica.installation import SUFFIX
from hub.replica.keys import AUTHORITY
from hub.settings import HubSettings
from hub.store.engine.engine import parse_url
from hub.store.migrate import HEAD, pending, schema_at
from machinery import pki
from machinery.durations import format_duration
from machinery.election.lock import LockRecord
from machinery.errors import UnavailableError
from machinery.runtime.clock import Clock

APART, MILLISECOND = timedelta(seconds=2), timedelta(milliseconds=1)
"""Tolerated difference between clocks. A larger change of the database's clock is a jump (`hub.api.liveness.JUMP`)."""
_CLOCKS = "set both clocks by NTP: leases are judged by the database's, certificates by each machine's"


@dataclass(frozen=True, slots=True)
class DatabaseState:
    now: datetime
    facts: Mapping[str, str | None]
    replicas: Sequence[Replica]
    leader: LockRecord | None


def schema(url: str) -> DoctorFinding:
    """Compare the database's schema with that of this release. Raises UnavailableError, InvalidError (schema too new)."""
    found = schema_at(parse_url(url))
    found.check()
    if found.is_current or found.is_newer:
        newer = ", newer than this release's, which can run on it" if found.is_newer else ""
        return well("schema", f'"{found.version}"{newer}')
    if found.version is None:
        return broken(
            "schema", "the database is empty: no hub was ever started with it", "hub serve creates the schema; check the URL"
        )
    message = f'"{found.version}", {len(list(pending(found.version)))} behind this release\'s "{HEAD}"'
    return warning("schema", message, "the next start migrates it; before that run hub backup and hub migrate --check")


def read_state(tx: Transaction) -> DatabaseState:
    facts = {name: tx.facts.get(name) for name in (AUTHORITY, SUFFIX, HUB_ID)}
    one = issuing(tx.authorities.all())
    if one is not None and tx.authorities.sealed_key(one.id) is not None:
        facts[AUTHORITY] = None  # the CA's key is in the database: the files do not matter
    return DatabaseState(tx.now, facts, tx.replicas.all(), tx.leaders.record())


def judged(state: DatabaseState, settings: HubSettings, clock: Clock, took: timedelta) -> list[DoctorFinding]:
    """Return the findings about this state of the database. `took`: how long the query for this state took."""
    identity = _identity(state, settings)
    message = f"answers within {took / MILLISECOND:.0f} ms; hub {state.facts[HUB_ID] or 'unknown'}"
    return [well("database", message), *identity, _clock(state, clock), *_replicas(state), _leader(state)]


def _identity(state: DatabaseState, settings: HubSettings) -> list[DoctorFinding]:
    found = []
    suffix = state.facts[SUFFIX]
    if suffix is not None and suffix != settings.api_group_suffix:
        message = f'the database\'s hub has API groups that end in "{suffix}", the settings say "{settings.api_group_suffix}"'
        found.append(broken("identity", message, f"--api-group-suffix {suffix}: it is fixed at the first start"))
    known, here = state.facts[AUTHORITY], _authorities(settings)
    if known is not None and here and known not in here and settings.ca_key_place != "secret":
        message = "the CA in the data directory (or --keys-dir) is not that of the hub in the database"
        advice = "use that hub's keys, or this hub's database: the hub will not start like this"
        found.append(broken("identity", message, advice))
    return found


def _authorities(settings: HubSettings) -> set[str]:
    """Return the fingerprints of the CAs in files."""
    with suppress(UnavailableError):
        pairs = read_pairs(settings.keys_dir or settings.data_dir).values()
        return {pki.parse_certificate(pair.certificate).key_hash for pair in pairs}
    return set()


def _clock(state: DatabaseState, clock: Clock) -> DoctorFinding:
    ahead = clock.now() - state.now
    if abs(ahead) > APART:
        return _ahead("this machine's is", ahead)
    return well("clock", "this machine's and the database's agree")


def _ahead(whose: str, ahead: timedelta) -> DoctorFinding:
    side, apart = "ahead of" if ahead > timedelta() else "behind", timedelta(milliseconds=round(abs(ahead) / MILLISECOND))
    return broken("clock", f"{whose} {format_duration(apart)} {side} the database's", _CLOCKS)


def _replicas(state: DatabaseState) -> list[DoctorFinding]:
    living = [replica for replica in state.replicas if not replica.is_lost(state.now)]
    if not living:
        message = "no replica has updated its row for ten seconds" if state.replicas else "no replica has a row"
        return [broken("replicas", message, "check that `hub serve` runs, and its log")]
    found = [well("replicas", ", ".join(f"{each.name} {each.state(state.now)} ({each.sessions} sessions)" for each in living))]
    found += [_ahead(f"that of the replica {each.name} is", each.load.ahead) for each in living if abs(each.load.ahead) > APART]
    lost = [replica.name for replica in state.replicas if replica.is_lost(state.now)]
    if lost:
        message = f"lost: {', '.join(lost)}"
        found.append(
            warning("replicas", message, "check its machine; a lost replica is removed from the list after ten minutes")
        )
    if not any(replica.takes_sessions(state.now) for replica in living):
        found.append(broken("replicas", "none takes sessions", "hubctl uncordon replica NAME, or wait until one is ready"))
    if len({replica.version for replica in living}) > 1:
        versions = ", ".join(f"{replica.name} {replica.version}" for replica in living)
        found.append(
            warning("replicas", f"several versions: {versions}", "finish the upgrade; versions may differ by one minor")
        )
    return found


def _leader(state: DatabaseState) -> DoctorFinding:
    """Check the leader: it has renewed its lock, or its replica is not lost (a single replica does not renew the lock)."""
    record = state.leader
    advice = "a replica takes over within the lease duration; if not, check their logs for the leader election"
    if record is None or not record.holder:
        return broken(
            "leader", "no replica is the leader: no certificate is signed, and silent clusters are not detected", advice
        )
    holder = next((replica for replica in state.replicas if replica.name == record.holder), None)
    if state.now - record.renewed_at > record.lease and (holder is None or holder.is_lost(state.now)):
        return broken("leader", f"{record.holder} has not renewed its lease since {record.renewed_at:%H:%M:%S}", advice)
    return well("leader", f"{record.holder}, in term {record.term}")
