"""What a request asks, discovery, table cells and health checks."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
import structlog.testing
import yaml
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from machinery.apiserver.access import Attributes, attributes
from machinery.apiserver.http import options
from machinery.apiserver.http.health import HealthEndpoints
from machinery.apiserver.http.responses import JSON, YAML, ResponseShape, etag_matches, negotiate, takes_gzip
from machinery.apiserver.kinds.core import CONFIG_MAP, NAMESPACE
from machinery.apiserver.openapi.discovery import Discovery, aggregated_version
from machinery.apiserver.read.past import parse_at
from machinery.apiserver.resource import ApiGroup, Resource, ServedVersion, version_order
from machinery.durations import human_duration
from machinery.errors import BadRequestError, InvalidError, NotAcceptableError
from machinery.meta.objects import Key
from machinery.meta.timestamps import age_of
from machinery.runtime.clock import ManualClock
from machinery.runtime.health import ALL, Endpoint, HealthCheck
from tests.checks import CASE_FILES, check_refusals

TABLES = yaml.safe_load((CASE_FILES / "requests.yaml").read_text())

NOW = datetime(2026, 11, 1, tzinfo=UTC)
LEASES = "/apis/coordination.k8s.io/v1"


def test_path_and_selector_become_attributes() -> None:
    for method, path, query, expected in TABLES["attributes"]:
        asked: Attributes = attributes(method, path, query)
        assert [asked.verb, asked.resource, asked.namespace, asked.name, asked.subresource] == expected, (method, path)

    for selector, name in TABLES["selectors"]:
        asked = attributes("GET", PATH, {"fieldSelector": selector})
        assert (asked.verb, asked.name, asked.selected_name) == ("list", "", name)

    asked = attributes("GET", f"{PATH}/edge1", {"fieldSelector": "metadata.name=edge2"})
    assert (asked.name, asked.selected_name) == ("edge1", "")


TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def test_continue_tokens_timeouts_and_field_selectors_are_read_or_refused() -> None:
    most = timedelta(seconds=60)
    asked = ["1m30s", "0", "1500ms"]
    assert [options.request_timeout({"timeout": text}, most) for text in asked] == [most, most, timedelta(seconds=1.5)]
    assert options.read_continue(options.write_continue(Key("ns", "a"), 42)) == options.Started(Key("ns", "a"), 42)
    large = [urlsafe_b64encode(text).decode() for text in (b"[" * 30_000, b'{"start":"/a","rv":%d}' % 10**30)]
    theirs = {"continue": options.write_continue(Key("theirs", "a"), 42)}
    with pytest.raises(BadRequestError, match="continue key is not valid"):
        options.list_options(CONFIG_MAP, "ours", theirs, NOW)
    assert options.list_options(CONFIG_MAP, "", theirs, NOW).query.after == Key("theirs", "a")
    junk = [(token, "") for token in ("garbage", "", "e30", "bnVsbA", "eyJydiI6MSwic3RhcnQiOjF9", *large)]
    check_refusals(BadRequestError, options.read_continue, junk)
    times = ("soon", "1", "1x", "s", "-", "1e3s", "99999999h", "0x1s", "1s ", "1" * 30_000)
    why = "invalid timeout specified in the request URL"
    check_refusals(BadRequestError, lambda text: options.request_timeout({"timeout": text}, most), [(t, why) for t in times])
    check_refusals(InvalidError, lambda query: options.list_options(CONFIG_MAP, "", query, NOW), TABLES["tokens"])
    assert options.selection(NAMESPACE, "", {"fieldSelector": "status.phase=Active"}).fields
    with pytest.raises(BadRequestError, match=r"field label not supported: spec\.x"):
        options.selection(NAMESPACE, "", {"fieldSelector": "spec.x=1"})


PATH = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_moment_is_an_instant_a_time_ago_or_a_revision() -> None:
    rows: list[tuple[str, datetime | int]] = [
        *(("0", 0), ("123", 123), ("2026-11-01T12:00Z", datetime(2026, 11, 1, 12, tzinfo=UTC))),
        ("2026-11-01T12:00:30.5+02:00", datetime(2026, 11, 1, 10, 0, 30, 500_000, tzinfo=UTC)),
        *(("-2h", NOON - timedelta(hours=2)), ("-1d12h", NOON - timedelta(hours=36)), ("2026-11-22T12:00:59Z", NOON)),
    ]
    assert [(text, expected) for text, expected in rows if parse_at(text, NOON) != expected] == []

    check_refusals(BadRequestError, lambda text: parse_at(text, NOON), TABLES["moments"])


def resource(group: str, name: str, *, version: str = "v1", others: tuple[str, ...] = (), custom: bool = True) -> Resource:
    versions = tuple(ServedVersion(other, {}, lambda document: document, lambda document: document) for other in others)
    return Resource(group=group, version=version, name=name, kind=name.capitalize(), versions=versions, custom=custom)


def test_groups_and_versions_are_listed_in_kubernetes_order() -> None:
    groups = [ApiGroup(name, (resource(name, "things"),)) for name in ("b.example.com", "a.example.com")]
    discovery = Discovery([*groups, ApiGroup("z.k8s.io", (resource("z.k8s.io", "zebras", custom=False),))])
    aggregated = json.loads(discovery.aggregated("v2", core=False)[0])
    expected = ["z.k8s.io", "a.example.com", "b.example.com"]
    assert [group["name"] for group in (discovery.page(["apis"]) or {})["groups"]] == expected
    assert [group["metadata"]["name"] for group in aggregated["items"]] == expected

    group = ApiGroup("a.example.com", (resource("a.example.com", "ants", version="v1beta1", others=("v1alpha1", "v2", "v1")),))
    assert group.versions == ("v1beta1", "v2", "v1", "v1alpha1")
    assert (Discovery([group]).page(["apis", group.name]) or {})["preferredVersion"]["version"] == "v1beta1"

    ordered = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    assert sorted(sorted(ordered), key=version_order) == ordered

    ants = resource("a", "ants")
    malformed = (resource("a", "Ants"), resource("b", "ants"), replace(ants, version=""))
    rows = [[ApiGroup("a", (ants,)), ApiGroup("a", (resource("a", "bees"),))], [ApiGroup("a", ())]]
    rows += [[ApiGroup("a", (each,))] for each in malformed]
    check_refusals(ValueError, Discovery, [(groups, "group") for groups in rows])


def test_answer_form_is_negotiated() -> None:
    rows: list[tuple[str, str, ResponseShape]] = [
        *(("", JSON, ResponseShape.OBJECT), (f"{TABLE},application/json", JSON, ResponseShape.TABLE)),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", JSON, ResponseShape.OBJECT),
        ("application/vnd.kubernetes.protobuf,application/json", JSON, ResponseShape.OBJECT),
        ("application/json;q=0.5,application/yaml", YAML, ResponseShape.OBJECT),
        ("text/html,application/json;q=0.1", JSON, ResponseShape.OBJECT),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", JSON, ResponseShape.PARTIAL),
    ]
    for accept, media, shape in rows:
        form = negotiate(accept)
        assert (form.media, form.shape) == (media, shape), (accept, media)

    unknown = [("text/html", ""), ("application/vnd.kubernetes.protobuf", ""), ("application/json;q=0", "")]
    check_refusals(NotAcceptableError, negotiate, unknown)
    assert negotiate(f"{TABLE},application/json", shapes=False).shape is ResponseShape.OBJECT

    assert [(accept, version) for accept, version in TABLES["discovery"] if aggregated_version(accept) != version] == []

    assert [takes_gzip(header) for header in ("gzip", "gzip, deflate, br", "*")] == [True] * 3
    assert [takes_gzip(header) for header in ("identity", "", "gzip;q=0", "*, gzip;q=0")] == [False] * 4
    assert [etag_matches(header, '"a"') for header in ('"a"', 'W/"a"', '"b", "a"', "*")] == [True] * 4
    assert [etag_matches(header, '"a"') for header in ('"b"', "")] == [False] * 2

    long = "a/b," * 1024
    assert [negotiate(f"{JSON},{long}").media, takes_gzip(f"gzip,{long}"), etag_matches(f"*,{long}", "x")] == [JSON, True, True]
    check_refusals(NotAcceptableError, negotiate, [(f"{long}{JSON}", "")])  # what is behind 4,096 characters is not parsed
    assert [takes_gzip(f"{long}gzip"), etag_matches(f"{long}*", "x")] == [False] * 2


MINUTE, HOUR, DAY = 60, 3600, 86400


def test_ages_are_shown_as_kubectl_shows_them() -> None:
    shown = {-5: "<invalid>", -1: "0s", 0: "0s", 119: "119s", 2 * MINUTE: "2m", 5 * MINUTE + 12: "5m12s", 10 * MINUTE: "10m"}
    shown |= {59 * MINUTE + 59: "59m", 3 * HOUR: "3h", 3 * HOUR + 20 * MINUTE: "3h20m", 8 * HOUR + 20 * MINUTE: "8h"}
    shown |= {47 * HOUR: "47h", 2 * DAY: "2d", 2 * DAY + 5 * HOUR: "2d5h", 8 * DAY + 5 * HOUR: "8d", 400 * DAY: "400d"}
    shown |= {2 * 365 * DAY: "2y", (2 * 365 + 1) * DAY: "2y1d", (9 * 365 + 1) * DAY: "9y"}
    assert {seconds: human_duration(seconds) for seconds in shown} == shown

    now = ManualClock().now()
    texts = (None, "yesterday", "0001-01-01T00:00:00+01:00")  # the last has no time in UTC
    assert [age_of(text, now) for text in texts] == ["<unknown>", "<invalid>", "<invalid>"]
    assert age_of("2025-12-31T23:59:00Z", now) == "60s"


async def well() -> None:
    return


async def ill() -> None:
    raise RuntimeError("this will fail")


WELL = (HealthCheck("good", well),)
ILL = (*WELL, HealthCheck("bad", ill))
WARNED = "warn: some health checks cannot be excluded: no matches for"
PING, PASSED, FAILED = "[+]ping ok\n", "{} check passed\n", "{} check failed\n"
GOOD, BAD = f"{PING}[+]good ok\n", "[-]bad failed: reason withheld\n"
CASES: list[tuple[str, tuple[HealthCheck, ...], str, int, str]] = [
    *(("?verbose=false", (), "", 200, PING + PASSED), ("", ILL, "", 500, GOOD + BAD + FAILED)),
    *(("?verbose", ILL, "", 500, GOOD + BAD + FAILED), ("?exclude=bad", ILL, "", 200, "ok")),
    ("?verbose&exclude=bad", ILL, "", 200, f"{GOOD}[+]bad excluded: ok\n{PASSED}"),
    ("?exclude=good", ILL, "", 500, f"{PING}[+]good excluded: ok\n{BAD}{FAILED}"),
    ("?verbose&exclude=zz&exclude=aa&exclude=bad", ILL, "", 200, f'{GOOD}[+]bad excluded: ok\n{WARNED} "aa","zz"\n{PASSED}'),
    ("?exclude=nosuch", ILL, "", 500, f'{GOOD}{BAD}{WARNED} "nosuch"\n{FAILED}'),
    *(("", ILL, "bad", 500, "internal server error: this will fail\n"), ("", ILL, "nosuch", 404, "404 page not found\n")),
    ("?exclude=", ILL, "", 500, f'{GOOD}{BAD}{WARNED} ""\n{FAILED}'),
]


async def asked(checks: tuple[HealthCheck, ...], endpoint: str, check: str, query: str) -> web.Response:
    path = f"/{endpoint}/{check}" if check else f"/{endpoint}"
    return await HealthEndpoints(checks).answer(make_mocked_request("GET", f"{path}{query}"), endpoint, check)


async def test_health_answers_equal_those_of_kubernetes() -> None:
    for endpoint, (query, checks, check, status, text) in product(Endpoint, CASES):
        answer = await asked(checks, endpoint, check, query)
        assert (answer.status, answer.text) == (status, text.replace("{}", endpoint))
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8", (endpoint, query, check)
        if not check or status != 200:
            assert answer.headers["X-Content-Type-Options"] == "nosniff", (endpoint, query, check)

    checks = (HealthCheck("hook", ill, ALL - {Endpoint.LIVEZ}), HealthCheck("hook", well, frozenset({Endpoint.LIVEZ})))
    assert [(await asked(checks, endpoint, "", "")).status for endpoint in Endpoint] == [500, 200, 500]
    expected = {f"/{endpoint}{rest}" for endpoint in Endpoint for rest in ("", "/ping", "/hook")}
    assert set(HealthEndpoints(checks).paths()) == expected

    failures = [RuntimeError("the disk is full")] * 3

    async def now_and_then() -> None:
        if failures:
            raise failures.pop()

    endpoints = HealthEndpoints((HealthCheck("disk", now_and_then),))
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            await endpoints.answer(make_mocked_request("GET", "/readyz"), "readyz", "")
    logged = [(line["event"], line.get("error")) for line in logs]
    assert logged == [("health check failed", "the disk is full"), ("health check passes again", None)]
