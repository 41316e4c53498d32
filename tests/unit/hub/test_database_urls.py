"""What is made of a database's URL and of the leader's lease, before anything is connected."""

from datetime import timedelta

import pytest

from hub.store.bounds import HELD, SessionLimits
from hub.store.engine import parse_url
from hub.store.postgres import connection_arguments
from machinery.errors import InvalidError

LIMITS = SessionLimits()


@pytest.mark.parametrize(
    ("url", "host", "port", "user", "name"),
    [
        ("postgresql://hub@one,two/fleet", "one,two", "5432,5432", "hub", "fleet"),
        ("postgresql://hub:p%40ss@one:5433,two/fleet", "one,two", "5433,5432", "hub", "fleet"),
        ("postgres://hub@one,two:5433/fleet", "one,two", "5432,5433", "hub", "fleet"),
        ("postgresql://hub@[::1]:5433,[fe80::2]/fleet", "::1,fe80::2", "5433,5432", "hub", "fleet"),
        ("postgresql://hub@/fleet?host=/run/a,/run/b", "/run/a,/run/b", "", "hub", "fleet"),
        ("postgresql://hub@one:5433/fleet", "one", "5433", "hub", "fleet"),
        ("postgres://hub@one/fleet", "one", "", "hub", "fleet"),
    ],
)
def test_one_server_or_several_as_postgresqls_own_tools_write_them(
    url: str, host: str, port: str, user: str, name: str
) -> None:
    given = connection_arguments(parse_url(url), LIMITS)
    assert (given["host"], str(given.get("port", "")).strip(","), given["user"], given["dbname"]) == (host, port, user, name)
    assert given.get("target_session_attrs") == "primary"


def test_a_password_survives_the_way_through_several_servers() -> None:
    assert connection_arguments(parse_url("postgresql://hub:p%40s,s@one,two/fleet"), LIMITS)["password"] == "p@s,s"  # noqa: S105 - made up


def test_what_the_url_asks_for_stays_but_for_the_limits() -> None:
    url = "postgresql://hub@one,two/fleet?sslmode=verify-full&target_session_attrs=read-write&connect_timeout=600&options=-c%20a=b"
    given = connection_arguments(parse_url(url), LIMITS)
    assert (given["sslmode"], given["target_session_attrs"]) == ("verify-full", "read-write")
    assert given["connect_timeout"] == HELD.total_seconds()
    assert given["options"].startswith("-c a=b -c idle_in_transaction_session_timeout=5000")


@pytest.mark.parametrize("url", ["postgresql://hub@one,two:port/fleet", "postgresql://hub:secret@one:two:three/fleet"])
def test_a_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidError) as refused:
        connection_arguments(parse_url(url), LIMITS)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("seconds", [0.3, 6, 10, 15])
def test_no_time_out_is_longer_than_a_third_of_the_lease(seconds: float) -> None:
    """But for a lease below three seconds: a statement has a second, PostgreSQL and TCP count in whole ones, two at least."""
    limits = SessionLimits.of_lease(timedelta(seconds=seconds))
    third = max(seconds / 3, 2)
    options = dict(pair.split("=") for pair in limits.options().replace("-c ", "").split())
    arguments = limits.arguments()
    for name in ("idle_in_transaction_session_timeout", "lock_timeout", "statement_timeout", "tcp_user_timeout"):
        assert 0 < int(options[name]) <= max(seconds / 3, 1) * 1000 + 1, name
    assert 0 < arguments["tcp_user_timeout"] <= max(seconds / 3, 1) * 1000 + 1
    for side in (arguments, {name.removeprefix("tcp_"): int(value) for name, value in options.items()}):
        silence = side["keepalives_idle"] + side["keepalives_interval"] * side["keepalives_count"]
        assert silence <= third
    assert arguments["connect_timeout"] <= max(round(third), 2)


def test_a_long_lease_makes_nobody_wait_longer() -> None:
    assert SessionLimits.of_lease(timedelta(seconds=137)) == SessionLimits()
