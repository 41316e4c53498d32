"""Documents, catalogues and generated pages: commands, flags, links, files and tests that they name exist."""

import ast
import contextlib
import io
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from docs.reference_pages import drift
from hollow.__main__ import main as hollow
from hub.__main__ import main as hub
from hub.api import history
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.managedclusteraddons import addon as addon_token
from hub.api.managedclusters import availability as clocksync, cluster as cluster_rules
from hub.api.managedclusters.availability import PARTED
from hub.controllers.certificates import rotation
from hub.controllers.clusters import cluster_sets
from hub.extensions.token_login.exchange import token_credential_request
from hub.https_door.callers.authentication import AuthenticationConfig
from hub.https_door.server import HttpsDoorConfig, build_door
from hub.registry.bootstrapcredentials.documents import AdvertisedAddress
from hub.registry.recovery import READOPTED
from hub.replica.leader_election import REASON as LED
from hubctl.__main__ import hubctl
from machinery.apiserver.resource import Question
from machinery.errors import UnauthorizedError
from machinery.identity import HubId
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from machinery.wire.registration.v1 import registration_pb2
from machinery.wire.session.v1 import session_pb2
from spoke.cli.flags import parser as spoke_parser
from spoke.domain.hubs import ChoiceReason
from tests.checks import present
from tests.fakes.authority import WordIssuer
from tests.fakes.inline_store import InlineStore

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [
    *ROOT.glob("*.md"),
    ROOT / "tests" / "faults.md",
    *(path for folder in ("docs", "bench", "charts", "examples") for path in (ROOT / folder).rglob("*.md")),
]
PROGRAMS: Mapping[str, click.Command] = {"hub": hub, "hubctl": hubctl, "hollow": hollow}
OTHER_PROGRAMS = (
    *("argocd-agentctl", "cut", "curl", "docker", "export", "git", "grep", "helm", "jq", "kill", "kind", "kubectl", "mkdir"),
    *("clusteradm", "pip", "python3", "tar", "xargs"),
)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\[\\]+)(?:#[^)]*)?\)")
NAMED_FILE = re.compile(r"`((?:hub|spoke|machinery|hollow|tests|proto|bench|docs|charts|examples)/[\w./-]*)`")
NAMED_TEST = re.compile(r"`?(tests/[\w/]+\.py)::(test_\w+)`?")
TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
CATALOGUES = {"agent.yaml": 107, "hub.yaml": 150, "kubecert.yaml": 78, "leadership.yaml": 12, "login.yaml": 34}
"""The number of rows of each catalogue."""
LEFT_OUT = r"(AWS IRSA|Cluster API import|CloudEvents|ManifestWork): .+"
ADR = re.compile(r"(?:ADR\s+|docs/adr/)(\d{4})")
DECIDED = rf"{LEFT_OUT}|.+ \(docs/adr/\d{{4}}\)"


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def lines_of(document: Path) -> Iterator[str]:
    """The commands of a document; one that goes over several lines is one line."""
    for block in BLOCK.findall(document.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            if shlex.split(line, comments=True):
                yield line.strip()


@cache
def flags_of(program: str, words: tuple[str, ...]) -> set[str]:
    """The flags that `--help` of a command lists. Fails when there is no such command."""
    if program == "spoke":
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            spoke_parser().parse_args([*words, "--help"])
        return set(FLAG.findall(output.getvalue()))
    answer = CliRunner().invoke(PROGRAMS[program], [*words, "--help"])
    return set(FLAG.findall(answer.output)) if answer.exit_code == 0 else set()


def helps(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The help of a command and of those below it, by the words that are typed."""
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = present(command.get_command(context, name))
            yield from helps(below, click.Context(below, info_name=name, parent=context))


def test_no_help_holds_a_control_sequence_or_an_escape_that_was_not_read() -> None:
    found = [each for name, program in PROGRAMS.items() for each in helps(program, click.Context(program, info_name=name))]
    spoke: Any = spoke_parser()._subparsers
    found += [(f"spoke {name}", each.format_help()) for name, each in spoke._group_actions[0].choices.items()]
    assert len(found) > 60
    assert [words for words, text in found if re.search(r"[^\n -~\u00a0-\uffff]|\\[a-z]\b", text)] == []


def flaw_of_command(words: list[str]) -> str | None:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    program, arguments = Path(words[0]).name, words[1:]
    flags = {word.partition("=")[0] for word in arguments if word.startswith("-") and word != "-"}
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return None if not arguments or arguments[0] in targets else "no such target"
    if program == "python":
        found = find_spec(arguments[1]) if arguments[0] == "-m" else (ROOT / arguments[0]).exists()
        return None if found else "no such module"
    if program in PROGRAMS or program == "spoke":
        first_flag = next((at for at, word in enumerate(arguments) if word.startswith("-")), len(arguments))
        known = flags_of(program, tuple(arguments[:first_flag]))
        unknown = flags - known - flags_of(program, ())
        return None if known and not unknown else f"no such command, or no flags {sorted(unknown)}"
    return None if program in OTHER_PROGRAMS else "not a program of this list"


@pytest.mark.jq
def test_the_documented_filter_finds_a_failed_attestation_in_the_list_that_hubctl_prints() -> None:
    [line] = [each for each in lines_of(DOCS / "how-to" / "attestation.md") if each.startswith("hubctl audit -o json | jq ")]
    record = {"annotations": {"authorization.k8s.io/reason": "attestation failed: the token has expired"}}
    listed = json.dumps({"kind": "AuditRecordList", "items": [{}, {"annotations": {}}, record]})
    found = subprocess.run(shlex.split(line)[5:], input=listed, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == record


def test_documented_commands_and_their_flags_exist() -> None:
    flaws = [
        f"{name_of(document)}: {line}: {flaw}"
        for document in DOCUMENTS
        for line in lines_of(document)
        for piped, words in groupby(shlex.split(line, comments=True), key="|".__eq__)
        if not piped and (flaw := flaw_of_command(list(words)))
    ]
    assert not flaws, "\n".join(flaws)
    cells = re.findall(r"^\| .* \| (.*) \|$", (DOCS / "how-to" / "run-by-hand.md").read_text(), re.MULTILINE)
    named = present({flag for cell in cells for flag in re.findall(r"`(--[a-z-]+)`", cell)})
    assert named <= flags_of("hub", ("serve",))


def test_linked_and_named_files_exist() -> None:
    missing = []
    for document in DOCUMENTS:
        text = document.read_text()
        missing += [f"{name_of(document)}: {link}" for link in LINK.findall(text) if not (document.parent / link).exists()]
        missing += [f"{name_of(document)}: {path}" for path in NAMED_FILE.findall(text) if not (ROOT / path).exists()]
    sources = [path for folder in ("hub", "spoke", "machinery", "hollow", "tests") for path in (ROOT / folder).rglob("*.py")]
    records = {path.name[:4] for path in (DOCS / "adr").glob("[0-9]*.md")}
    for path in (*DOCUMENTS, *sources, *(ROOT / "tests" / "catalogue").glob("*.yaml")):
        missing += [f"{name_of(path)}: ADR {number}" for number in ADR.findall(path.read_text()) if number not in records]
    assert not missing, "\n".join(missing)
    linked = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    documents = {path for kind in ("tutorial", "how-to", "reference", "explanation") for path in (DOCS / kind).glob("*.md")}
    assert sorted(map(name_of, documents - linked)) == []


@cache
def known_tests(path: str) -> frozenset[str]:
    file = ROOT / path
    return frozenset(TEST.findall(file.read_text()) if file.exists() else ())


def missing_tests(text: str) -> list[str]:
    return [f"{path}::{test}" for path, test in NAMED_TEST.findall(text) if test not in known_tests(path)]


def tables(page: Path) -> dict[str, list[list[str]]]:
    """The rows of all tables by the heading of their first column, without the headings."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] | None = None
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            rows = None
        elif rows is None:
            rows = found.setdefault(cells[0], [])
        elif not cells[0].startswith("---"):
            rows.append(cells)
    return found


def test_tests_that_documents_name_exist() -> None:
    missing = [f"{name_of(page)}: {test}" for page in DOCUMENTS for test in missing_tests(page.read_text())]
    assert not missing, "\n".join(missing)
    faults = tables(ROOT / "tests" / "faults.md")["fault"]
    model = tables(DOCS / "explanation" / "threat-model.md")
    rules = [row for heading in ("rule", "RPC", "kind", "purpose of a certificate") for row in model[heading]]
    without = [row[0] for row in (*faults, *rules) if not NAMED_TEST.search(" ".join(row))]
    assert not without, "\n".join(without)


def test_threat_model_lists_every_rpc_kind_and_certificate_purpose() -> None:
    async def refuse(_certificate: bytes) -> CertificateRecord:
        raise UnauthorizedError("nobody")

    address = AdvertisedAddress(HubId("hub"), "https://hub.example:6443", "hub.example:8443")

    async def answers(_question: Question) -> dict[str, Any]:
        raise UnauthorizedError("nobody")

    extensions = (lambda _accounts, _admit: token_credential_request("login.example.org", answers),)
    parts = (InlineStore(), WordIssuer(), address, AuthenticationConfig(refuse), HttpsDoorConfig())
    discovery = build_door(*parts, clock=ManualClock(), api_resources=extensions).server._site._discovery
    files = (registration_pb2.DESCRIPTOR, session_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    expected = {
        "RPC": {f"{service.name}.{method.name}" for service in services for method in service.methods},
        "kind": {resource.kind for group in (*discovery._core, *discovery._named) for resource in group.resources},
        "purpose of a certificate": set(Purpose),
    }
    model = tables(DOCS / "explanation" / "threat-model.md")
    listed = {heading: {name.strip() for row in model[heading] for name in row[0].split(",")} for heading in expected}
    assert listed == expected


def flaw_of_row(row: Mapping[str, Any], reasons: str) -> str:
    if "reason" in row:
        return "" if "tests" not in row and re.fullmatch(reasons, row["reason"]) else f"no such reason: {row['reason']}"
    named = row["tests"] or ()
    if not named or not all(NAMED_TEST.fullmatch(test) for test in named):
        return "it names no test"
    return ", ".join(missing_tests(" ".join(named)))


def test_catalogue_rows_have_tests_that_exist_or_a_reason() -> None:
    flaws, counts = [], {}
    for path in sorted((ROOT / "tests" / "catalogue").glob("*.yaml")):
        areas = yaml.safe_load(path.read_text("utf-8"))
        reasons = LEFT_OUT if path.name == "hub.yaml" else DECIDED
        for area in areas:
            names = [row["row"] for row in area["rows"]]
            flaws += [f"{path.name}: {name} stands twice" for name in set(names) if names.count(name) > 1]
            flaws += [f"{path.name}: {row['row']}: {flaw}" for row in area["rows"] if (flaw := flaw_of_row(row, reasons))]
        counts[path.name] = sum(len(area["rows"]) for area in areas)
    assert not flaws, "\n".join(flaws)
    assert counts == CATALOGUES


def test_generated_pages_are_as_generated() -> None:
    assert drift() == [], "run `make reference`, and commit what it writes"


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


def given_reasons() -> Iterator[tuple[str, ast.expr]]:
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
    reasons = list(given_reasons())
    literal = {reason.value for _, reason in reasons if isinstance(reason, ast.Constant)}
    assert {(file, ast.unparse(reason)) for file, reason in reasons if not isinstance(reason, ast.Constant)} == set(WORKED_OUT)
    assert literal | set().union(*WORKED_OUT.values()) == documented()
    assert [reason for reason in documented() if not REASON.fullmatch(reason)] == []
    written = "".join(path.read_text() for folder in ("hub", "spoke") for path in (ROOT / folder).rglob("*.py"))
    assert [reason for reason in sorted(STANDBY | MOVES | CONDITIONS) if f'"{reason}"' not in written] == []
