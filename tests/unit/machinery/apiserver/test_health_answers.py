"""Health answers, byte for byte as Kubernetes gives them, on all three endpoints."""

from typing import Any

import pytest
import structlog.testing
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from machinery.apiserver.health import ENDPOINTS, HealthCheck, HealthEndpoints


async def well() -> None:
    return


async def ill() -> None:
    raise RuntimeError("this will fail")


WELL = (HealthCheck("good", well),)
ILL = (*WELL, HealthCheck("bad", ill))
GROUPED = (*WELL, HealthCheck("etcd", ill), HealthCheck("etcd-readiness", ill, group="etcd"))

WARNED = "warn: some health checks cannot be excluded: no matches for"
CASES: list[tuple[str, tuple[HealthCheck, ...], str, int, str]] = [
    ("", (), "", 200, "ok"),
    ("?verbose", (), "", 200, "[+]ping ok\n{} check passed\n"),
    ("?verbose=false", (), "", 200, "[+]ping ok\n{} check passed\n"),
    ("", ILL, "", 500, "[+]ping ok\n[+]good ok\n[-]bad failed: reason withheld\n{} check failed\n"),
    ("?verbose", ILL, "", 500, "[+]ping ok\n[+]good ok\n[-]bad failed: reason withheld\n{} check failed\n"),
    ("?exclude=bad", ILL, "", 200, "ok"),
    ("?verbose&exclude=bad", ILL, "", 200, "[+]ping ok\n[+]good ok\n[+]bad excluded: ok\n{} check passed\n"),
    ("?exclude=good", ILL, "", 500, "[+]ping ok\n[+]good excluded: ok\n[-]bad failed: reason withheld\n{} check failed\n"),
    (
        "?verbose&exclude=zz&exclude=aa&exclude=bad",
        ILL,
        "",
        200,
        f'[+]ping ok\n[+]good ok\n[+]bad excluded: ok\n{WARNED} "aa","zz"\n{{}} check passed\n',
    ),
    (
        "?exclude=nosuch",
        ILL,
        "",
        500,
        f'[+]ping ok\n[+]good ok\n[-]bad failed: reason withheld\n{WARNED} "nosuch"\n{{}} check failed\n',
    ),
    ("?exclude=nosuch", WELL, "", 200, "ok"),
    (
        "?verbose&exclude=etcd",
        GROUPED,
        "",
        200,
        "[+]ping ok\n[+]good ok\n[+]etcd excluded: ok\n[+]etcd-readiness excluded with etcd: ok\n{} check passed\n",
    ),
    ("", ILL, "good", 200, "ok"),
    ("", ILL, "bad", 500, "internal server error: this will fail\n"),
    ("", ILL, "nosuch", 404, "404 page not found\n"),
]


async def asked(checks: tuple[HealthCheck, ...], endpoint: str, check: str, query: str) -> web.Response:
    path = f"/{endpoint}/{check}" if check else f"/{endpoint}"
    request: Any = make_mocked_request("GET", f"{path}{query}")
    return await HealthEndpoints(checks).answer(request, endpoint, check)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("case", CASES)
async def test_the_answer_is_that_of_kubernetes(
    endpoint: str, case: tuple[str, tuple[HealthCheck, ...], str, int, str]
) -> None:
    query, checks, check, status, text = case
    answer = await asked(checks, endpoint, check, query)
    assert (answer.status, answer.text) == (status, text.replace("{}", endpoint))
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    if not check or status != 200:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_check_belongs_to_the_endpoints_it_names_and_may_differ_between_them() -> None:
    checks = (HealthCheck("hook", ill, ("healthz", "readyz")), HealthCheck("hook", well, ("livez",)))
    assert [(await asked(checks, endpoint, "", "")).status for endpoint in ENDPOINTS] == [500, 200, 500]
    assert sorted(HealthEndpoints(checks).paths()) == sorted(
        [f"/{endpoint}{rest}" for endpoint in ENDPOINTS for rest in ("", "/ping", "/hook")]
    )


async def test_the_log_is_told_once_that_a_check_fails_with_its_reason_and_once_that_it_is_over() -> None:
    failing = True

    async def now_and_then() -> None:
        if failing:
            raise RuntimeError("the disk is full")

    endpoints = HealthEndpoints((HealthCheck("disk", now_and_then),))
    request: Any = make_mocked_request("GET", "/readyz")
    with structlog.testing.capture_logs() as logs:
        for now in (True, True, True, False, False):
            failing = now
            await endpoints.answer(request, "readyz", "")
    assert [(line["event"], line.get("error")) for line in logs] == [
        ("health check failed", "the disk is full"),
        ("health check passes again", None),
    ]
