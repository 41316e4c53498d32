"""Bootstrap credentials: what they allow, and what they say when they do not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hub.domain.credential import CredentialRecord, check
from machinery.errors import ForbiddenError
from machinery.identity import ClusterName, CredentialId

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EDGE = ClusterName("edge")
ANY = CredentialRecord(CredentialId("c1"), None, None, NOW, NOW + timedelta(hours=1), "ann")


@pytest.mark.parametrize("changed", [{}, {"cluster": EDGE}, {"uses": 1}])
def test_credential_may_act(changed: dict[str, Any]) -> None:
    check(replace(ANY, **changed), EDGE, NOW, used_up=False)


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
        check(replace(ANY, **changed), EDGE, NOW, used_up=False)


def test_used_up_credential_says_so() -> None:
    with pytest.raises(ForbiddenError, match="its 2 uses were spent on other clusters"):
        check(replace(ANY, uses=2), EDGE, NOW, used_up=True)
