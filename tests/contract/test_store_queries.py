"""Every store selects, orders, counts and groups objects as the expressions themselves say."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, repeat
from random import Random
from typing import Any

import pytest
import yaml

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import AgentSession
from hub.api.liveness import Beat
from hub.api.managedclusters.agent_annotations import AGENT_VERSION
from hub.api.managedclusters.availability import Transition
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.query.expressions import NO_AGENT, PATTERN_TEXTS, PRESENT, AgentFacts, FieldSource, PatternBudget, QueryRecord
from hub.api.query.groups import GroupQuery
from hub.api.query.parsing import group_query, sort_of, where_of
from hub.api.query.selection import known_of, page_of, selects, uses_present
from hub.ports import Store, Transaction
from machinery.errors import BadRequestError
from machinery.expression import Type
from machinery.identity import AgentId, ClusterName, SerialNumber
from machinery.meta.conditions import FALSE, TRUE, UNKNOWN
from machinery.meta.objects import Key, Page, Query
from machinery.meta.selectors import parse_field_selector, parse_label_selector
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, check_refusal, check_refusals, present
from tests.trials import soaked, trials

TABLES = yaml.safe_load((CASE_FILES / "conditions.yaml").read_text())

CSR = 45.0  # age of the last beat of agents that never open a session
EXPRESSIONS = trials(test=250, soak=20_000)
VERSIONS = ["v1.29.3", "v1.30.0", "v1.30.0-rc.1", "v1.9.9", "v1.31.2-gke.100", "latest", ""]
QUANTITIES = ["64Gi", "65536Mi", "8", "500m", "1e3", "0", "much", "128Gi"]
REGULAR, TEXTS = TABLES["quoted"]["regular"], TABLES["quoted"]["text"]
ATOMS: list[str] = TABLES["atoms"]


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def atom(random: Random) -> str:
    form = random.choice(ATOMS)
    while "{" in form:
        start, end = form.index("{"), form.index("}")
        form = form[:start] + draw(random, form[start + 1 : end]) + form[end + 1 :]
    return form


def draw(random: Random, what: str) -> str:
    return quoted(random.choice(TABLES["quoted"][what])) if what in TABLES["quoted"] else random.choice(TABLES["words"][what])


def expression(random: Random, depth: int = 3) -> str:
    if depth == 0 or random.random() < 0.4:
        return atom(random)
    if random.random() < 0.25:
        return f"!({expression(random, depth - 1)})"
    sign = random.choice([" && ", " || "])
    return f"({expression(random, depth - 1)}{sign}{expression(random, depth - 1)})"


def with_regular(random: Random) -> str:
    """An expression that always looks at names with a regular expression."""
    return f"{expression(random)} || name =~ {quoted(random.choice(REGULAR))}"


def cluster(random: Random, number: int, created: datetime) -> dict[str, Any]:
    def perhaps(chance: float, value: dict[str, Any]) -> dict[str, Any]:
        return value if random.random() < chance else {}

    capacity = {
        **perhaps(0.8, {"cpu": random.choice(QUANTITIES), "memory": random.choice(QUANTITIES)}),
        **perhaps(0.5, {"nodes": random.choice(["0", "3", "10"])}),
        **perhaps(0.3, {"nvidia.com/gpu": random.choice(QUANTITIES)}),
    }
    status = {
        **perhaps(0.8, {"version": {"kubernetes": random.choice(VERSIONS)}}),
        **perhaps(0.8, {"capacity": capacity}),
        **perhaps(0.6, {"allocatable": {"cpu": random.choice(QUANTITIES)}}),
        "conditions": [
            {"type": kind, "status": random.choice(["True", "False", "Unknown"]), "reason": random.choice(["Silent", "Ready"])}
            for kind in ("ManagedClusterConditionAvailable", "Extra")
            if random.random() < 0.7
        ],
        **perhaps(0.7, {"clusterClaims": [{"name": "region", "value": random.choice(TEXTS)}]}),
    }
    labels = {
        **perhaps(0.6, {"tier": random.choice(["edge-1", "region", "é"])}),
        **perhaps(0.5, {"cluster.open-cluster-management.io/clusterset": random.choice(["edge-1", "blue"])}),
        **perhaps(0.4, {"feature.open-cluster-management.io/addon-search": random.choice(["available", "unhealthy"])}),
    }
    taints = [{"key": "gpu", "effect": random.choice(["NoSelect", "PreferNoSelect"])}] if random.random() < 0.4 else []
    metadata = {
        "name": random.choice(["edge-1", "edge-22", "west"]),
        "uid": f"uid-{number}",
        "labels": labels,
        **perhaps(0.6, {"annotations": {AGENT_VERSION: random.choice(["0.1.0", "0.2.0", "0.2.1-rc.1", "new"])}}),
        "creationTimestamp": format_time(created),
    }
    return {
        "apiVersion": "v1",
        "kind": "ManagedCluster",
        "metadata": {**metadata, "name": f"{metadata['name']}-{number}"},
        "spec": {"hubAcceptsClient": random.random() < 0.5, "taints": taints},
        "status": status,
    }


def put(tx: Transaction, document: dict[str, Any]) -> None:
    tx.objects.put(MANAGED_CLUSTERS, document, None, "tester")


def beat(tx: Transaction, name: str, ages: tuple[float, bool] | None) -> None:
    """A cluster whose agent was heard so many seconds ago; None: never."""
    if ages is not None:
        seconds, connected = ages
        cluster, agent = ClusterName(name), AgentId("xk7pq")
        tx.heartbeats.store([Beat(cluster, timedelta(seconds=seconds), available=True)])
        if seconds != CSR:
            tx.heartbeats.set_session(cluster, f"of-{name}" if connected else None, agent_version="0.2.0")
        if connected:
            tx.agent_sessions.open(AgentSession(cluster, agent, f"of-{name}", "hub-0" if seconds else "Hub-1", tx.now))
            tx.agent_sessions.open(AgentSession(cluster, AgentId("a0001"), "another", "hub-9", tx.now))
        for number in range(int(seconds) // 60):
            at = tx.now - timedelta(hours=2.5 * number)
            tx.transitions.add(Transition(cluster, f"uid-{name}", at, TRUE, UNKNOWN if number % 2 else FALSE, "Silent", "hub"))
            ends, revoked = at + timedelta(days=20), tx.now if number % 3 == 0 else None
            serial = SerialNumber(abs(hash((name, number))))
            record = CertificateRecord(serial, Purpose.AGENT, "u", (), at, ends, "k", at, cluster, agent, revoked_at=revoked)
            tx.certificates.add(record)


def find(tx: Transaction, query: Query) -> tuple[Page, int]:
    return tx.objects.find(MANAGED_CLUSTERS, query), tx.objects.count(MANAGED_CLUSTERS, query)


async def fleet(store: Store, clock: ManualClock, random: Random, size: int = 60) -> list[dict[str, Any]]:
    """Clusters of all sorts, some of them heard of."""
    documents = []
    for number in range(size):
        clock.advance(timedelta(minutes=random.randrange(1, 3000), milliseconds=random.randrange(1000)))
        document = cluster(random, number, await store.read(lambda tx: tx.now))
        documents.append(document)
        await store.run(put, document)
    for document in documents:
        ages = random.choice([None, (CSR, False), (0.0, True), (5.0, True), (90.0, False), (600.0, True), (660.0, False)])
        await store.run(beat, document["metadata"]["name"], ages)
    return documents


def agents_of(tx: Transaction) -> dict[str, AgentFacts]:
    """What the tables beside documents say, read through their ports."""

    def micros(at: datetime | None) -> int | None:
        return None if at is None else (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    falls = tx.transitions.falls(tx.now - timedelta(days=1))
    found: dict[str, AgentFacts] = {}
    for last in tx.heartbeats.all():
        records = [each.not_after for each in tx.certificates.of_cluster(last.cluster) if each.revoked_at is None]
        found[last.cluster] = {
            FieldSource.BEAT: micros(last.at),
            FieldSource.SESSION: "true" if last.session else "false",
            FieldSource.REPLICA: next(
                (each.replica for each in tx.agent_sessions.of(last.cluster) if each.session == last.session), None
            ),
            FieldSource.DRIVER: "grpc" if last.agent_version else "csr",
            FieldSource.FLAPS: str(len(falls.get(last.cluster, ()))),
            FieldSource.CERTIFICATE: micros(max(records, default=None)),
        }
    return found


@soaked(EXPRESSIONS)
async def test_the_store_and_the_expression_agree(store: Store, clock: ManualClock) -> None:
    random = Random(20261122)
    documents, agents = await fleet(store, clock, random), await store.read(agents_of)
    now = (await store.read(lambda tx: tx.now)).replace(microsecond=0) + timedelta(minutes=5)
    chosen = 0
    for _ in range(EXPRESSIONS):
        text = expression(random)
        query = Query(where=where_of(text, now))
        page, count = await store.read(find, query)
        expected = sorted(
            name
            for each in documents
            if selects(MANAGED_CLUSTERS, query, each, agents.get(name := each["metadata"]["name"], NO_AGENT))
        )
        assert [item.key.name for item in page.items] == expected, text
        assert count == len(expected), text
        chosen += 0 < len(expected) < len(documents)
    assert chosen > EXPRESSIONS / 3, "most expressions choose some and leave some"


def versioned(name: str, version: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"version": {"kubernetes": version}}}


async def test_a_condition_sees_what_its_own_transaction_wrote_and_the_past_as_it_was(store: Store) -> None:
    where = where_of("version < 1.30", datetime.now(UTC))
    await store.run(put, versioned("a", "v1.29.0"))

    def upgrade(tx: Transaction) -> list[int]:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", "a"))
        before = len(find(tx, Query(where=where))[0].items)
        tx.objects.put(MANAGED_CLUSTERS, versioned("a", "v1.30.0"), old, "tester")
        return [before, len(find(tx, Query(where=where))[0].items)]

    assert await store.run(upgrade) == [1, 0]
    assert [len((await store.read(find, Query(where=where, at=at)))[0].items) for at in (1, 2)] == [1, 0]


def test_wrong_conditions_and_watches_of_what_changes_by_itself_are_refused() -> None:
    now = datetime.now(UTC)
    wrong = (
        ("versoin < 1.30", 'did you mean "version"'),
        ("version < banana", "banana"),
        ("memory > 64 Gib", ""),
        ("labels", "map"),
    )
    check_refusals(
        BadRequestError, lambda text: where_of(text, now), [(text, rf"^where: column \d+: .*{why}") for text, why in wrong]
    )
    for text in ("accepted && !(age > 1h)", "lastBeat > 1m || accepted", "connected"):
        check_refusal(
            BadRequestError, where_of, text, now, watched=True, match=r"(age|lastBeat|connected) changes without a write"
        )
    assert where_of("accepted", now, watched=True)


def test_regular_expressions_are_bounded_by_values_and_by_time() -> None:
    where = where_of('accepted && name =~ "a+"', datetime.now(UTC))

    def resolve(clock: Callable[[], float], number: int) -> None:
        PatternBudget(clock).resolve(where, lambda _field: repeat("a", number))

    check_refusal(BadRequestError, resolve, float, PATTERN_TEXTS + 1, match="^where: column 18: .* different values")
    check_refusal(BadRequestError, resolve, count().__next__, 3, match="^where: column 18: .* more than 2.0 s")
    resolve(float, PATTERN_TEXTS)


SET = "cluster.open-cluster-management.io/clusterset"
ORDERS = (
    *("version", "-version,name", "memory", "-cpu,-name", "nodes,set", 'labels["tier"]', "-claims.region,available", "age"),
    *("-age", "lastBeat", "-lastBeat,version", "flaps,-version.minor", "certificateExpiresIn", "-replica,driver,reason"),
    *("connected,agentVersion", "accepted,-claims.region,memory,name", ".metadata.creationTimestamp"),
    ".status.capacity.memory",
)
GROUPS = (
    *("version", "set,available", "accepted", "labels.tier", "claims.region,connected", 'taints["gpu"],addons["search"]'),
    *("version.minor", "reason,flaps", "replica,driver", "", "set,version.minor"),
)
SUMS = "memory,cpu,nodes,allocatable.cpu"
SELECTORS = TABLES["selectors"]


def page(tx: Transaction, query: Query) -> Page:
    return tx.objects.find(MANAGED_CLUSTERS, query)


def pages(tx: Transaction, query: Query, text: str) -> Iterator[tuple[list[str], int | None]]:
    """The names on each page and how many are said to follow; each page is asked for where the one before it ended."""
    while True:
        found = page(tx, query)
        yield [item.key.name for item in found.items], found.remaining
        if found.after is None:
            return
        query = replace(query, after=found.items[-1].key, order=sort_of(text, found.place) if text else None)


Case = tuple[str, Query, list[str], list[tuple[list[str], int | None]]]


async def test_pages_in_every_order_hold_what_a_list_holds_and_count_what_follows(store: Store, clock: ManualClock) -> None:
    random, size = Random(7), 4
    documents, agents = await fleet(store, clock, random, size=18), await store.read(agents_of)
    everything = await store.read(page, Query())
    assert len(everything.items) == len(documents)
    now = await store.read(lambda tx: tx.now)

    def cases(base: Query) -> Iterator[Case]:
        """Orders and queries with the names and pages that follow from the plain list."""
        for text in ("", *ORDERS):
            where, fields = where_of(with_regular(random), now), parse_field_selector(SELECTORS[0])
            queries = (base, replace(base, where=where), replace(base, fields=fields))
            for query in (replace(each, order=sort_of(text) if text else None) for each in queries):
                if query.past and uses_present(query):
                    continue
                names = [item.key.name for item in page_of(MANAGED_CLUSTERS, query, everything.items, 0, agents).items]
                rest = [None if query.where or query.fields else len(names) - end for end in range(size, len(names), size)]
                parts = [(names[at : at + size], n) for at, n in zip(range(0, len(names), size), [*rest, None], strict=False)]
                yield text, query, names, parts or [([], None)]

    def differing(tx: Transaction, expected: Iterable[Case]) -> list[tuple[str, Query]]:
        return [
            (text, query)
            for text, query, names, parts in expected
            if [item.key.name for item in page(tx, query).items] != names
            or list(pages(tx, replace(query, limit=size), text)) != parts
        ]

    def with_a_write(tx: Transaction, expected: Iterable[Case]) -> list[tuple[str, Query]]:
        put(tx, {"apiVersion": "v1", "kind": "ManagedCluster", "metadata": {"namespace": "x", "name": "own", "uid": "own"}})
        return differing(tx, expected)

    past = Query(namespace="", at=everything.revision, past=True)
    assert await store.read(differing, [*cases(Query())]) == []
    assert await store.run(with_a_write, [*cases(Query(namespace=""))]) == []
    assert await store.read(differing, [*cases(Query(namespace="")), *cases(past)]) == []


async def test_orders_put_what_is_lacking_last_and_go_on_behind_objects_that_are_gone(store: Store) -> None:
    async def ordered(text: str) -> str:
        return "".join(item.key.name for item in (await store.read(page, Query(order=sort_of(text)))).items)

    def several(tx: Transaction) -> None:
        for name, version in (("e", "v1.30.0"), ("b", ""), ("a", "v1.9.0"), ("c", "v1.30.0"), ("d", "latest")):
            put(tx, versioned(name, version))

    def changed(tx: Transaction, name: str, memory: str) -> None:
        old = present(tx.objects.get(MANAGED_CLUSTERS, Key("", name)))
        tx.objects.put(MANAGED_CLUSTERS, {**old.document, "status": {"capacity": {"memory": memory}}}, old, "tester")

    def grow(tx: Transaction) -> list[str]:
        changed(tx, "a", "9Gi")
        return [item.key.name for item in page(tx, Query(order=sort_of("memory"))).items]

    def remove(tx: Transaction) -> None:
        tx.objects.delete(MANAGED_CLUSTERS, present(tx.objects.get(MANAGED_CLUSTERS, Key("", "c"))), "tester")

    await store.run(several)
    orders = {text: await ordered(text) for text in ("version", "-version", "-version,-name", "memory", "-memory", "accepted")}
    by_name = dict.fromkeys(("memory", "-memory", "accepted"), "abcde")
    assert orders == {"version": "acebd", "-version": "ceabd", "-version,-name": "ecadb", **by_name}
    for number, name in enumerate("abcde"):
        await store.run(changed, name, f"{number + 1}Gi")
    before = await store.read(lambda tx: tx.changes.newest())
    assert await store.run(grow) == ["b", "c", "d", "e", "a"], "its own writes count"
    then = await store.read(page, Query(order=sort_of("memory"), at=before))
    assert [item.key.name for item in then.items] == ["a", "b", "c", "d", "e"]
    first = await store.read(page, Query(order=sort_of("memory"), limit=2))
    await store.run(remove)
    rest = Query(order=sort_of("memory", first.place), after=first.items[-1].key)
    assert [item.key.name for item in (await store.read(page, rest)).items] == ["d", "e", "a"]


def totals(grouping: GroupQuery, known: Iterable[QueryRecord]) -> dict[tuple[str | None, ...], list[Any]]:
    """The number of objects and the sums per combination of values, added up one by one."""
    none: list[Any] = [0, *(None for _ in grouping.sums)]
    found: dict[tuple[str | None, ...], list[Any]] = {} if grouping.by else {(): none}
    for one in known:
        values = tuple(one.text(each.source) for each in grouping.by)
        new: list[Any] = [1, *(Type.QUANTITY.read(one.text(each.source)) for each in grouping.sums)]
        old = found.get(values, none)
        found[values] = [was if more is None else (was or 0) + more for was, more in zip(old, new, strict=True)]
    return found


async def test_groups_count_every_chosen_cluster_once_with_its_quantities(store: Store, clock: ManualClock) -> None:
    random = Random(11)
    await fleet(store, clock, random, size=40)
    agents, everything = await store.read(agents_of), await store.read(page, Query())
    now = await store.read(lambda tx: tx.now)

    async def check(text: str, query: Query) -> None:
        grouping = group_query(text, SUMS if len(text) % 2 else "")
        if query.past and (uses_present(query) or any(each.source.of in PRESENT for each in grouping.by)):
            with pytest.raises(BadRequestError, match="have no history"):
                await store.read(lambda tx: tx.objects.groups(query, grouping))
            return
        chosen = page_of(MANAGED_CLUSTERS, query, everything.items, 0, agents).items
        known = (known_of(MANAGED_CLUSTERS, item.document, agents.get(item.key.name, NO_AGENT)) for item in chosen)
        found = await store.read(lambda tx: tx.objects.groups(query, grouping))
        assert {each.values: [each.count, *each.totals] for each in found} == totals(grouping, known), text
        assert [each.count for each in found] == sorted((each.count for each in found), reverse=True), text

    for text in GROUPS:
        for where in (None, where_of(with_regular(random), now)):
            await check(text, Query(where=where))
            await check(text, Query(where=where, at=everything.revision, past=True))


async def test_fields_choose_as_they_do_in_memory(store: Store, clock: ManualClock) -> None:
    await fleet(store, clock, Random(3), size=40)
    everything = (await store.read(page, Query())).items
    for selector in SELECTORS:
        for labels in ("", "tier", "!tier", "tier in (region,edge-1)", f"{SET} notin (blue)"):
            query = Query(fields=parse_field_selector(selector), labels=parse_label_selector(labels).requirements)
            expected = [item.key.name for item in page_of(MANAGED_CLUSTERS, query, everything, 0, {}).items]
            assert [item.key.name for item in (await store.read(page, query)).items] == expected, (selector, labels)
