"""When certificate requests go: the rules of Kubernetes' controller-manager, at their very moments."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain.request_end import Ends, goes_at
from machinery.timestamps import format_time

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def request(certificate: str = "", **decided: timedelta) -> dict[str, Any]:
    """One that was made at T0, with conditions that came so much later."""
    conditions = [
        {"type": kind, "status": "True", "lastUpdateTime": format_time(T0 + after)} for kind, after in decided.items()
    ]
    status = {"conditions": conditions} | ({"certificate": certificate} if certificate else {})
    return {"metadata": {"name": "r", "creationTimestamp": format_time(T0)}, "status": status}


@pytest.mark.parametrize(
    ("asked", "goes_after"),
    [
        (request(), 24 * HOUR),
        (request(Approved=2 * HOUR), 26 * HOUR),
        (request("Y2VydA==", Approved=2 * HOUR), 3 * HOUR),
        (request(Denied=2 * HOUR), 3 * HOUR),
        (request(Approved=2 * HOUR, Failed=5 * HOUR), 6 * HOUR),
    ],
    ids=["pending", "approved, not signed", "issued", "denied", "failed"],
)
def test_a_request_goes_as_with_kubernetes(asked: dict[str, Any], goes_after: timedelta) -> None:
    assert goes_at(asked, Ends(), None) == T0 + goes_after


def test_an_issued_request_goes_with_its_certificate_at_the_latest() -> None:
    asked = request("Y2VydA==", Approved=2 * HOUR)
    assert goes_at(asked, Ends(), T0 + 2.5 * HOUR) == T0 + 2.5 * HOUR
    assert goes_at(asked, Ends(), T0 + 9 * HOUR) == T0 + 3 * HOUR


def test_how_long_they_are_kept_is_the_operators() -> None:
    ends = Ends(finished=5 * HOUR, pending=7 * HOUR)
    assert goes_at(request(), ends, None) == T0 + 7 * HOUR
    assert goes_at(request(Denied=HOUR), ends, None) == T0 + 6 * HOUR
