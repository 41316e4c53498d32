"""Audit records: the policy, their way into a store or a file, and floods that become a bounded number of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import yaml
from structlog.testing import capture_logs

from hub.api.auditrecords import LOGIN_FAILURE, AuditRecord, Numbering, ResponseStatus, Stage, User, read_record
from hub.audit import Auditor, default_policy
from hub.audit.floods import BURST, LONGEST_TEXT, MAX_KINDS, REPEATED
from hub.audit.policy import parse_policy, read_policy
from hub.audit.trail import LEFT_OUT, Trail
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.storage import Actor
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import ManualClock
from machinery.runtime.tasks import GuardedTasks
from machinery.sanitize import plain
from tests.checks import CASE_FILES, check_refusal, check_results, present, refusal
from tests.fakes.audit_records import MemorySink, record
from tests.fakes.stage import until

ADMIN = Actor("admin", ("system:masters",))
AGENT = Actor("system:open-cluster-management:edge:a", ("system:open-cluster-management:managed-clusters",))
CLUSTERS, HUB = f"cluster.{GROUP_SUFFIX}", f"hub.{GROUP_SUFFIX}"
PATH_MATCHES = {"/livez*": True, "/livez": False, "*": True}


@asynccontextmanager
async def running(
    sink: MemorySink, *, capacity: int = 10_000, batch: int = 400, window: timedelta = timedelta(milliseconds=5)
) -> AsyncIterator[Trail]:
    trail = Trail(sink, ManualClock(), capacity=capacity, batch=batch, window=window)
    await trail.sink.open()
    async with asyncio.timeout(10), GuardedTasks("test") as tasks:
        tasks.start("trail", trail.run())
        yield trail


def kept(sink: MemorySink) -> list[AuditRecord]:
    """What stands in the sink; each record has a place of its own."""
    assert len({(entry.replica, entry.sequence) for entry in sink.entries}) == len(sink.entries)
    found = [read_record(entry.document) for entry in sink.entries]
    return [each for each in found if each is not None]


def test_text_that_cannot_be_stored_or_shown_is_replaced() -> None:
    texts = ("a\x00", "\x08", "\x0c", "\x1b[0m", "\x7f", "\udcff", "\u00e9\n\\b")
    entries = [Numbering("a").entry(msgspec.structs.replace(record(1), user_agent=text)) for text in texts]
    assert [present(read_record(each.document)).user_agent for each in entries] == [plain(text) for text in texts]


async def test_records_that_come_together_are_written_together_and_a_flush_waits_for_no_window() -> None:
    sink = MemorySink()
    async with running(sink, window=timedelta(seconds=60)) as trail:
        for number in range(50):
            trail.offer(record(number))
            await asyncio.sleep(0)
        await trail.finish()
    assert sink.batches == [50]


async def test_finish_waits_for_a_slow_place() -> None:
    sink = MemorySink()
    async with running(sink) as trail:
        sink.gate.clear()
        trail.offer(record(1))
        finishing = asyncio.create_task(trail.finish())
        await until(lambda: sink.asked)
        assert not finishing.done()
        trail.offer(record(2))  # answered during the stop: still taken
        sink.gate.set()
        await finishing
        trail.offer(record(3))  # too late, and no crash
        assert trail.snapshot()["late"] == 1
    assert kept(sink) == [record(1), record(2)]


async def test_a_place_that_fails_gets_the_same_links_again() -> None:
    sink = MemorySink()
    sink.failing = 2
    with capture_logs() as lines:
        async with running(sink) as trail:
            trail.offer(record(1))
            await trail.finish()
            assert trail.snapshot()["failures"] == 2
    assert kept(sink) == [record(1)]
    logged = [line["event"] for line in lines]
    assert logged[:2] == ["audit records cannot be written now", "audit records are written again"], "each of them once"
    sink = MemorySink()
    sink.broken = 4
    async with running(sink) as trail:
        for each in (record(1), record(2)):
            trail.offer(each)
        await trail.finish()
    assert kept(sink) == [record(1), record(2)], "a place that takes nothing is no reason to leave records out"


async def test_what_finds_no_room_is_counted_where_it_is_missing() -> None:
    sink = MemorySink()
    async with running(sink, capacity=3) as trail:
        sink.gate.clear()
        trail.offer(record(0))
        await until(lambda: sink.asked)  # on its way, and stuck
        for number in range(1, 8):
            trail.offer(record(number))
        assert trail.snapshot()["dropped"] == 4
        sink.gate.set()
        await until(lambda: not trail.snapshot()["waiting"])
        trail.offer(record(8))
        await trail.finish()
    found = kept(sink)
    assert [each.audit_id for each in found] == ["id-0", "id-1", "id-2", "id-3", "", "id-8"]
    assert found[4].stage is Stage.DROPPED
    assert found[4].dropped is not None
    assert found[4].dropped.count == 4


async def test_a_record_that_cannot_be_written_is_left_out_alone_and_a_record_says_so() -> None:
    unwritable = msgspec.structs.replace(record(2), annotations={"a": object()})
    for wrong, refused in ((unwritable, ""), (record(2, user="mallory"), "mallory")):
        sink = MemorySink()
        sink.refused = refused
        async with running(sink) as trail:
            for each in (record(1), wrong, record(3)):
                trail.offer(each)
            await trail.finish()
            assert trail.snapshot()["written"] == 3
        first, second, third = kept(sink)
        assert (first, third) == (record(1), record(3))
        assert LEFT_OUT in second.annotations
        assert second.at == record(2).at


def refused(number: int, address: str, *, user: str = ANONYMOUS.user, code: int = 401) -> AuditRecord:
    status = ResponseStatus(code, "Refused")
    return msgspec.structs.replace(
        record(number), user=User(user), source_ips=(address,), response_status=status, user_agent="x" * 9_000
    )


async def kept_of(*offered: AuditRecord) -> tuple[list[AuditRecord], list[AuditRecord]]:
    """What is kept of the records of known callers, and of strangers."""
    sinks = MemorySink(), MemorySink()
    clock = ManualClock()
    known, strangers = (Trail(sink, clock, window=timedelta()) for sink in sinks)
    auditor = Auditor(default_policy(GROUP_SUFFIX), [known], clock, strangers=[strangers])
    async with GuardedTasks("test") as tasks:
        tasks.start("audit", auditor.run())
        for each in offered:
            auditor.offer(each)
        await auditor.finish()
    first, second = ([found for entry in sink.entries if (found := read_record(entry.document))] for sink in sinks)
    return first, second


def repeated(records: list[AuditRecord]) -> list[int]:
    return [int(each.annotations[REPEATED]) for each in records if REPEATED in each.annotations]


async def test_refusals_of_strangers_are_counted_per_address_and_reason_and_kept_apart() -> None:
    login = msgspec.structs.replace(refused(0, "10.0.0.1", code=201), annotations={LOGIN_FAILURE: "expired"})
    flood = [refused(number, "10.0.0.1", code=429 if number % 2 else 401) for number in range(1_000)]
    flood += [refused(number, f"2001:db8:0:1::{number:x}") for number in range(1_000)]
    known, strangers = await kept_of(*flood, login, login, record(1))
    assert known == [record(1)]
    assert (len(strangers), repeated(strangers)) == (8, [499, 499, 999, 1])
    assert max(len(each.user_agent) for each in strangers) == LONGEST_TEXT


async def test_any_number_of_strange_addresses_makes_a_bounded_number_of_records() -> None:
    _, strangers = await kept_of(*(refused(number, f"10.0.{number // 250}.{number % 250}") for number in range(5_000)))
    assert len(strangers) == MAX_KINDS + 1 <= 2 * MAX_KINDS + 1
    assert repeated(strangers) == [5_000 - MAX_KINDS]


async def test_one_caller_above_its_rate_is_counted_and_no_other_caller() -> None:
    flood = [refused(number, "10.0.0.1", user="mallory", code=403) for number in range(BURST + 1_000)]
    ann = [record(number) for number in range(BURST)]
    known, strangers = await kept_of(*flood, *ann)
    assert (strangers, [each for each in known if each.user == User("ann")], len(known)) == ([], ann, 2 * BURST + 2)
    assert repeated(known) == [999]


def of(verb: str, group: str, resource: str, name: str = "x", namespace: str = "") -> Attributes:
    plain, _, part = resource.partition("/")
    return Attributes(verb, f"/apis/{group}/v1/{plain}", group, "v1", plain, part, namespace, name)


def level(rules: str, asked: Attributes, actor: Actor = ADMIN) -> str:
    head = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
    return parse_policy({**head, "rules": yaml.safe_load(rules)}, "the policy").evaluate(actor, asked).level.value


SECRETS = of("get", "", "secrets", namespace="ns")
STATUS = of("patch", CLUSTERS, "managedclusters/status")
PATH = Attributes("get", "/livez/ping")
MATCHING = (
    *("{}", "{users: [admin]}", "{userGroups: [x, 'system:masters']}", "{verbs: [get, list]}", "{namespaces: [ns]}"),
    *("{resources: [{group: ''}]}", "{resources: [{resources: [configmaps, secrets]}]}"),
    "{resources: [{resources: [secrets], resourceNames: [x]}]}",
)
NOT_MATCHING = (
    *("{users: [bob]}", "{userGroups: [x]}", "{verbs: [list]}", "{namespaces: [other]}", "{resources: [{group: 'x'}]}"),
    *("{resources: [{resources: [secrets], resourceNames: [y]}]}", "{nonResourceURLs: ['*']}"),
)
STATUS_MATCHES = {"managedclusters": False, "managedclusters/status": True, "managedclusters/*": True}
STATUS_MATCHES |= {"*/status": True, "*/approval": False, "*": True}


def matches(rule: str, asked: Attributes) -> bool:
    return level(yaml.safe_dump([{"level": "Metadata", **yaml.safe_load(rule)}]), asked) == "Metadata"


def test_rules_match_as_in_kubernetes_and_secret_bodies_are_never_recorded() -> None:
    assert [rule for rule in (*MATCHING, *NOT_MATCHING) if matches(rule, SECRETS)] == list(MATCHING)
    pattern = f"{{resources: [{{group: {CLUSTERS}, resources: ['%s']}}]}}"
    assert {resource: matches(pattern % resource, STATUS) for resource in STATUS_MATCHES} == STATUS_MATCHES
    assert {path: matches(f"{{nonResourceURLs: ['{path}']}}", PATH) for path in PATH_MATCHES} == PATH_MATCHES
    assert matches("{namespaces: ['']}", STATUS)
    assert not matches("{namespaces: ['']}", PATH)
    rules = "[{level: None, users: [admin]}, {level: Request}]"
    created = of("create", CLUSTERS, "managedclusters")
    assert [level(rules, created), level(rules, created, AGENT)] == ["None", "Request"]
    for asked, recorded in (
        *((of("create", "", "secrets"), "Metadata"), (of("list", "", "secrets"), "Metadata")),
        (of("create", "", "serviceaccounts/token"), "Metadata"),
        (of("create", "authentication.k8s.io", "tokenreviews"), "Metadata"),
        (of("create", HUB, "bootstrapcredentials"), "Metadata"),
        (of("create", CLUSTERS, "managedclusters"), "RequestResponse"),
    ):
        assert level("[{level: RequestResponse}]", asked) == recorded, asked.path
    content = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "Panic"],
        "rules": [{"level": "Metadata", "omitStages": ["ResponseStarted"]}],
    }
    verdict = parse_policy(content, "p").evaluate(ADMIN, SECRETS)
    assert [stage for stage in Stage if verdict.records(stage)] == [Stage.RESPONSE_COMPLETE, Stage.DROPPED]


def test_everything_wrong_with_a_file_is_reported_at_once(tmp_path: Path) -> None:
    path = CASE_FILES / "wrong-audit-policy.yaml"
    assert str(present(refusal(InvalidError, read_policy, path))).splitlines() == [
        f"the audit policy {path} has 12 problems:",
        "  - apiVersion: must be 'audit.k8s.io/v1'",
        "  - rules[0].level: must be 'None', 'Metadata', 'Request' or 'RequestResponse'",
        "  - rules[1].users[0]: must be text",
        '  - rules[1].resources[0].group: must be a group without its version, such as "cluster.example.io"',
        "  - rules[1].resources[1]: resourceNames need resources",
        '  - rules[1].nonResourceURLs[0]: "livez" must begin with "/", and "*" may only be its end',
        '  - rules[1].nonResourceURLs[1]: "/a*b" must begin with "/", and "*" may only be its end',
        "  - rules[2]: nonResourceURLs cannot be combined with resources or namespaces",
        "  - rules[3]: must be a mapping",
        "  - rules[4].level: is required",
        "  - omitStages: must be of RequestReceived, ResponseStarted, ResponseComplete, Panic",
        "  - colour: there is no such field",
    ]
    path = tmp_path / "policy.yaml"
    for text, words in (("", "mapping"), ("[1]", "mapping"), ("{", "is not YAML")):
        path.write_text(text)
        check_refusal(InvalidError, read_policy, path, match=words)
    check_refusal(InvalidError, read_policy, tmp_path / "missing.yaml", match="cannot be read")


def test_default_policy_records_changes_and_reads_of_secrets() -> None:
    def level_of(who: str, asked: list[str]) -> str:
        attributes = Attributes(*asked) if len(asked) == 2 else of(*asked)
        return default_policy(GROUP_SUFFIX).evaluate({"admin": ADMIN, "agent": AGENT}[who], attributes).level.value

    check_results(level_of, yaml.safe_load((CASE_FILES / "audit-levels.yaml").read_text()))
