"""Bootstrap credentials: what they allow, and what they say when they do not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain.credential import Bounds, CredentialPhase, CredentialRecord, Tally, check, phase, taken
from machinery.errors import ForbiddenError
from machinery.identity import ClusterName, CredentialId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EDGE = ClusterName("edge")
ANY = CredentialRecord(CredentialId("c1"), None, None, NOW, NOW + timedelta(hours=1), "ann")


@pytest.mark.parametrize("changed", [{}, {"cluster": EDGE}, {"uses": 1}])
def test_credential_may_act(changed: dict[str, Any]) -> None:
    check(replace(ANY, **changed), EDGE, NOW)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"revoked_at": NOW}, "revoked"),
        ({"expires_at": NOW}, "expired at 2026-01-01T00:00:00Z"),
        ({"cluster": ClusterName("other")}, 'for cluster "other"'),
        ({"cluster": ClusterName("edge1")}, 'for cluster "edge1"'),
    ],
)
def test_credential_may_not_act_and_says_why(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ForbiddenError, match=words):
        check(replace(ANY, **changed), EDGE, NOW)


@pytest.mark.parametrize(
    ("uses", "tally", "words"),
    [
        (2, Tally(2), "is used up: its 2 uses were spent on other agents"),
        (1, Tally(1), "is used up: its only use was spent"),
        (1, Tally(0, 1), "of 1, 0 spent and 1 held for others that wait for a decision"),
        (3, Tally(1, 1, 1), "of 3, 1 spent and 2 held"),
    ],
)
def test_credential_without_a_use_left_says_why(uses: int, tally: Tally, words: str) -> None:
    assert words in taken(replace(ANY, uses=uses), tally).message


@pytest.mark.parametrize(
    ("changed", "issued", "expected"),
    [
        ({}, 7, CredentialPhase.ACTIVE),
        ({"uses": 2}, 1, CredentialPhase.ACTIVE),
        ({"uses": 2}, 2, CredentialPhase.USED_UP),
        ({"uses": 2, "revoked_at": NOW}, 2, CredentialPhase.REVOKED),
        ({"expires_at": NOW}, 0, CredentialPhase.EXPIRED),
        ({"expires_at": NOW, "uses": 1}, 1, CredentialPhase.USED_UP),
    ],
)
def test_where_a_credential_stands(changed: dict[str, Any], issued: int, expected: CredentialPhase) -> None:
    assert phase(replace(ANY, **changed), issued, NOW) is expected


@pytest.mark.parametrize(
    ("name", "fits"), [("edge-1", True), ("edge-", True), ("xedge-1", False), ("edge", False), ("lab", True)]
)
def test_a_pattern_is_for_whole_names(name: str, fits: bool) -> None:  # noqa: FBT001 - a table
    record = replace(ANY, bounds=Bounds(patterns=("edge-*", "lab")))
    assert record.admits(ClusterName(name)) is fits
    if not fits:
        with pytest.raises(ForbiddenError, match=r"whose name fits edge-\*, lab, and"):
            check(record, ClusterName(name), NOW)
