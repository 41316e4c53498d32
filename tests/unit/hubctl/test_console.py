"""Rules by which `hubctl console` refuses requests of a browser."""

from email.message import Message
from http import HTTPStatus

from hubctl.client.console_proxy import MAX_BODY, SECRET, RequestGuard, body_size
from tests.checks import check_results

PORT, WORD = 9000, "the-secret"
HERE = f"127.0.0.1:{PORT}"
API, PAGE = "/apis/a.io/v1/things?watch=1", "/console/main.js"
OWN = {"Host": HERE, SECRET: WORD}


def headers_of(*given: tuple[str, str]) -> Message:
    found = Message()
    for name, value in given:
        found[name] = value
    return found


def status_of(method: str, target: str, headers: dict[str, str], *more: tuple[str, str]) -> int:
    refusal = RequestGuard(PORT, WORD).refusal(method, target, headers_of(*headers.items(), *more))
    return 200 if refusal is None else refusal[0]


def test_only_requests_of_its_own_pages_with_the_secret_of_this_start_are_forwarded() -> None:
    assert WORD not in repr(RequestGuard(PORT, WORD))
    same, cross, link = {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Mode": "navigate"}
    origin, forbidden = {"Origin": f"http://{HERE}"}, HTTPStatus.FORBIDDEN
    rows = (
        ("GET", API, OWN, 200),
        ("PATCH", API, {**OWN, **same, **origin}, 200),
        ("GET", API, {**OWN, "Host": f"localhost:{PORT}"}, 200),
        ("GET", API, {"Host": HERE}, HTTPStatus.UNAUTHORIZED),
        *(("GET", API, {"Host": HERE, SECRET: wrong}, HTTPStatus.UNAUTHORIZED) for wrong in ("", "x", WORD[:-1], "\u00e9")),
        ("GET", API, {"Host": HERE, "Authorization": f"Bearer {WORD}"}, HTTPStatus.UNAUTHORIZED),
        # DNS rebinding
        *(("GET", API, {**OWN, "Host": host}, forbidden) for host in ("evil.example", "127.0.0.1", "127.0.0.1:1")),
        *(("GET", PAGE, {"Host": host}, forbidden) for host in ("", f"evil.example:{PORT}", f"127.0.0.1.nip.io:{PORT}")),
        ("GET", API, OWN, ("Host", HERE), forbidden),
        # requests of other pages
        *(("POST", API, {**OWN, "Origin": other}, forbidden) for other in ("null", f"http://localhost:{PORT}", f"https://{HERE}")),
        *(("GET", API, {**OWN, "Sec-Fetch-Site": site}, forbidden) for site in ("cross-site", "same-site", "x")),
        ("GET", API, {**OWN, **cross, **link}, forbidden),
        # files of the console
        ("GET", PAGE, {"Host": HERE}, 200),
        ("HEAD", "/", {"Host": HERE}, 200),
        ("GET", "/console/", {"Host": HERE, **cross, **link}, 200),
        ("GET", PAGE, {"Host": HERE, **cross}, forbidden),
        ("GET", PAGE, {"Host": HERE, **cross, **link, "Origin": "https://evil.example"}, forbidden),
        ("POST", PAGE, OWN, HTTPStatus.METHOD_NOT_ALLOWED),
        # what must not pass for such a file
        *(("GET", path, {"Host": HERE}, HTTPStatus.UNAUTHORIZED) for path in ("/consolex", "/version", "/%63onsole/", "/api")),
        *(("GET", f"/console/{up}/api", OWN, HTTPStatus.BAD_REQUEST) for up in ("..", "%2e%2E", "..%2Fa", "..%5C", ".")),
        *(("GET", path, OWN, HTTPStatus.BAD_REQUEST) for path in ("//h/api", "http://h/api", "*", "/\u00e9", "\\..\\api")),
    )  # fmt: skip
    check_results(status_of, rows)
    lengths = (((), 0), (("7",), 7), ((str(MAX_BODY),), MAX_BODY), ((str(MAX_BODY + 1),), None), (("1", "2"), None))
    wrong = (((text,), None) for text in ("", "-1", "+1", "1_0", "0x1", "9" * 5000, "\u0661"))
    check_results(lambda given: body_size(headers_of(*(("Content-Length", text) for text in given))), (*lengths, *wrong))
    assert body_size(headers_of(("Content-Length", "1"), ("Transfer-Encoding", "chunked"))) is None
