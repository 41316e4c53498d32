"""Rules by which `hubctl console` refuses requests of a browser."""

from email.message import Message

import yaml

from hubctl.client.console_proxy import MAX_BODY, SECRET, RequestGuard, body_size
from tests.checks import CASE_FILES, check_results, present

PORT, WORD = 9000, "the-secret"
HEADERS = {"here": ("Host", f"127.0.0.1:{PORT}"), "secret": (SECRET, WORD)}
REQUESTS = yaml.safe_load((CASE_FILES / "console-requests.yaml").read_text())


def headers_of(*given: tuple[str, str]) -> Message:
    found = Message()
    for name, value in given:
        found[name] = value
    return found


def status_of(method: str, target: str, *headers: str) -> int:
    given = [HEADERS.get(text) or (text.partition(": ")[0], text.partition(": ")[2]) for text in headers]
    refusal = RequestGuard(PORT, WORD).refusal(method, target, headers_of(*given))
    return 200 if refusal is None else refusal[0]


def test_only_requests_of_its_own_pages_with_the_secret_of_this_start_are_forwarded() -> None:
    assert WORD not in repr(RequestGuard(PORT, WORD))
    check_results(status_of, [(*call.split(" ", 1), *headers, code) for call, headers, code in REQUESTS])
    wrong = [headers_of(HEADERS["here"], (SECRET, word)) for word in ("", "x", WORD[:-1], "\u00e9")]
    assert [present(RequestGuard(PORT, WORD).refusal("GET", "/apis", each))[0] for each in wrong] == [401] * 4
    lengths = (((), 0), (("7",), 7), ((str(MAX_BODY),), MAX_BODY), ((str(MAX_BODY + 1),), None), (("1", "2"), None))
    rows = (((text,), None) for text in ("", "-1", "+1", "1_0", "0x1", "9" * 5000, "\u0661"))
    check_results(lambda given: body_size(headers_of(*(("Content-Length", text) for text in given))), (*lengths, *rows))
    assert body_size(headers_of(("Content-Length", "1"), ("Transfer-Encoding", "chunked"))) is None
