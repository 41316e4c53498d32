"""The reference page of Events and the code have the same reasons."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hub.api import history
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.managedclusteraddons import addon as addon_token
from hub.api.managedclusters import availability as clocksync, cluster as cluster_rules
from hub.api.managedclusters.availability import PARTED
from hub.controllers.certificates import rotation
from hub.controllers.clusters import cluster_sets
from hub.registry.recovery import READOPTED
from hub.replica.leader_election import REASON as LED
from machinery.meta.objects import Key
from spoke.domain.hubs import ChoiceReason

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/events.md").read_text()
PLACES = {"EventRecord": 2, "AgentEvent": 0, "record": 0}  # which argument is the reason; `record` is that of announcements
REASON = re.compile(r"[A-Z][A-Za-z]+")
_AVAILABILITY = (cluster_rules.AVAILABLE, cluster_rules.SILENT, cluster_rules.UNAVAILABLE)
AVAILABILITY = frozenset(each.reason for each in _AVAILABILITY) | PARTED
ENDED = {f"Certificate{phase}" for phase in (RequestPhase.ISSUED, RequestPhase.DENIED, RequestPhase.FAILED)}
STANDBY = {"HubReady", "HubNotAccepted", "HubDenied", "HubRevoked", "HubLost", "HubCredentialEndsSoon"}
MOVES = {"MoveRequested", "MoveCompleted", "MoveCancelled"}
CONDITIONS = {"ClientCertificateUpdated", "ClientCertificateUpdateFailed", "NamespaceApplyFailed"}
WORKED_OUT: Mapping[tuple[str, str], frozenset[str] | set[str]] = {
    ("hub/controllers/clusters/addons.py", "condition.reason"): {
        addon_token.token_ready(Key("c1", "x"), "u").reason,
        addon_token.token_failed("why").reason,
    },
    ("hub/controllers/observers/transition_recorder.py", "available.reason"): AVAILABILITY,
    ("hub/controllers/observers/transition_recorder.py", "clock.reason"): {
        clocksync.SYNCED.reason,
        clocksync.OUT_OF_SYNC.reason,
    },
    ("hub/controllers/observers/transition_recorder.py", "f'Certificate{phase}'"): ENDED,
    ("hub/controllers/observers/transition_recorder.py", "reason"): MOVES
    | {"RenewalRequested", "AddOnAvailable", "AddOnUnavailable"},
    ("hub/controllers/observers/transition_recorder.py", "verdict.capitalize()"): {"Accepted", "Denied"},
    ("hub/controllers/certificates/rotation.py", "authority.phase.value"): {phase.value for phase in rotation.PHASE_MESSAGES},
    ("hub/controllers/clusters/cluster_sets.py", "reason"): {reason for _, reason, _ in cluster_sets.CHANGES.values()},
    ("hub/api/history.py", "reason"): {
        *(history.SHORTENED, history.FILLS_UP, history.FULL),
        *(history.AUDIT_SHORTENED, history.AUDIT_FILLS_UP),
    },
    ("hub/replica/leader_election.py", "REASON"): {LED},
    ("hub/registry/hubreplicas/service.py", "reason"): {"ReplicaDrained", "ReplicaUncordoned", "ReplicaLost"},
    ("hub/registry/events.py", "reason"): set(),  # an agent's, which are below
    ("hub/registry/recovery.py", "READOPTED"): {READOPTED},
    ("spoke/agent/loop.py", "made.why.value"): {why.value for why in ChoiceReason},
    ("spoke/session/supervisor.py", "decision.why.value"): {why.value for why in ChoiceReason},
    ("spoke/domain/report.py", "condition.reason"): CONDITIONS,
    ("spoke/transports/kubernetes/documents.py", "'Available' if good else 'Unavailable'"): {"Available", "Unavailable"},
    ("spoke/failover/standby.py", "reason"): STANDBY,
}  # values that are not written where they are reported: by file and expression, all possible ones


def told() -> Iterator[tuple[str, ast.expr]]:
    """File and reason of each call that makes an Event."""
    for path in sorted((*(ROOT / "hub").rglob("*.py"), *(ROOT / "spoke").rglob("*.py"))):
        name, text = str(path.relative_to(ROOT)), path.read_text()
        for node in ast.walk(ast.parse(text if re.search(r"EventRecord\(|AgentEvent\(|record(_event)?\(", text) else "")):
            if isinstance(node, ast.Call) and (place := _place(node, name)) is not None and node.args:
                yield name, node.args[min(place, len(node.args) - 1)]


def _place(call: ast.Call, file: str) -> int | None:
    function = ast.unparse(call.func)
    if function in ("EventRecord", "AgentEvent"):
        return PLACES[function]
    if file == "hub/controllers/observers/transition_recorder.py" and function in ("record", "self._record"):
        return 0 if function == "record" else PLACES["EventRecord"]
    announced = function.endswith("announcements.record") or (
        file == "spoke/failover/standby.py" and function == "self._record_event"
    )
    return PLACES["record"] if announced else None


def documented() -> set[str]:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    return {reason for row in rows for reason in re.findall(r"`(\w+)`", row)}


def test_page_of_events_lists_exactly_the_reasons_in_the_code() -> None:
    reasons = list(told())
    literal = {reason.value for _, reason in reasons if isinstance(reason, ast.Constant)}
    assert {(file, ast.unparse(reason)) for file, reason in reasons if not isinstance(reason, ast.Constant)} == set(WORKED_OUT)
    assert literal | set().union(*WORKED_OUT.values()) == documented()
    assert [reason for reason in documented() if not REASON.fullmatch(reason)] == []
    written = "".join(path.read_text() for folder in ("hub", "spoke") for path in (ROOT / folder).rglob("*.py"))
    assert [reason for reason in sorted(STANDBY | MOVES | CONDITIONS) if f'"{reason}"' not in written] == []
