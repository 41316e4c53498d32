"""Rules for the replacement of an add-on's token. Source: OCM's token driver."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from machinery.meta.conditions import FALSE, TRUE, Condition
from machinery.meta.timestamps import format_time

REFRESHED = "TokenRefreshed"
REMAINING = 0.2
"""The share of its lifetime left when a token is replaced."""
_NUMBERS = (int, float)


def flaw(claims: Mapping[str, Any] | None, account_uid: str, now: datetime) -> str:
    """Why a token must be replaced; empty: it is good. `claims` None: unreadable or missing."""
    if claims is None:
        return "there is no readable token"
    life = _life(claims)
    if life is None:
        return "it does not say from when to when it is good"
    begin, end = life
    if _uid(claims) != account_uid:
        return "it is of another ServiceAccount"
    if end <= begin:
        return "it was never good"
    if now >= end:
        return f"it has expired at {format_time(end)}"
    return "its time is nearly over" if now >= due(begin, end) else ""


def due(begin: datetime, end: datetime) -> datetime:
    """The time at which a token with this lifetime is replaced."""
    return end - (end - begin) * REMAINING


def due_of(claims: Mapping[str, Any] | None) -> datetime | None:
    """When the token with these claims is replaced; None: it states no lifetime."""
    life = _life(claims) if claims is not None else None
    return due(*life) if life is not None else None


def _life(claims: Mapping[str, Any]) -> tuple[datetime, datetime] | None:
    begin, end = claims.get("iat"), claims.get("exp")
    if not isinstance(begin, _NUMBERS) or not isinstance(end, _NUMBERS):
        return None
    try:
        return datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _uid(claims: Mapping[str, Any]) -> str:
    private = claims.get("kubernetes.io")
    account = private.get("serviceaccount") if isinstance(private, Mapping) else None
    return str(account.get("uid") or "") if isinstance(account, Mapping) else ""


def refreshed(end: datetime) -> Condition:
    return Condition(REFRESHED, TRUE, "AddonTokenRefreshed", f"Addon token refreshed, expires at {format_time(end)}")


def not_refreshed(why: str) -> Condition:
    return Condition(REFRESHED, FALSE, "TokenCreationFailed", f"Failed to create addon token: {why}"[:1024])
