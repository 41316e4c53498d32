"""How long a statement of the hub may take, and a session stand still, by the leader's lease."""

from datetime import timedelta

import pytest

from hub.store.bounds import SessionLimits


@pytest.mark.parametrize(
    ("lease", "milliseconds"),
    [(0.1, 1000), (2.999, 1000), (6, 2000), (15, 5000), (137, 5000)],
)
def test_a_statement_has_a_third_of_the_lease_but_never_so_little_that_the_store_cannot_work(
    lease: float, milliseconds: int
) -> None:
    limits = SessionLimits.of_lease(timedelta(seconds=lease))
    for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
        assert f"-c {name}={milliseconds} " in f"{limits.options()} "
