"""Mutated certificate signing requests through the hub's own decisions: `make fuzz` makes up a million."""

from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bench.csrs.drafts import drafted
from bench.csrs.mutations import MUTATIONS
from bench.csrs.ring import fresh
from bench.csrs.runs import ran, summed, world
from bench.csrs.verdicts import judged
from bench.csrs.world import Attempt, Outcome
from hub.domain.certificate import Purpose
from machinery.identity import ClusterName
from tests.trials import soaked, trials

SEED = 20_261_122
CASES, MOST = trials(1500, 50_000), 1000


@soaked(CASES)
@pytest.mark.timeout(600)
def test_no_mutated_request_crashes_hangs_or_is_signed_against_the_policy(
    record_property: Callable[[str, object], None],
) -> None:
    record_property("seed", SEED)
    total = summed([ran(SEED, block, min(MOST, CASES - block * MOST)) for block in range(-(-CASES // MOST))])
    assert total.findings == []
    assert total.cases == CASES
    assert set(total.mutations) == {"none", *(mutation.__name__ for mutation in MUTATIONS)}, "each was tried"
    for outcome in ("Issued", "InvalidError", "ForbiddenError", "Failed", "TooLargeError"):
        assert total.outcomes[outcome] > CASES / 100, total.outcomes


def issued() -> tuple[Attempt, Outcome]:
    """A good request of an agent, and what came of it."""
    for number in range(1000):
        draft = drafted(Random(number), world())
        if draft.asker.name == "agent" and not draft.addon:
            attempt = replace(draft.attempt(), post=False)
            return attempt, world().tried(attempt)
    raise AssertionError("no agent asked")


def _exchanged(outcome: Outcome) -> Outcome:
    """The recovery certificate in the place of the agent's."""
    request: Any = outcome.request
    recovery = request["metadata"]["annotations"]["hub.open-cluster-management.io/recovery-certificate"]
    agents = b64decode(request["status"]["certificate"]).decode()
    return replace(
        outcome,
        records=tuple(
            replace(record, purpose={Purpose.AGENT: Purpose.RECOVERY, Purpose.RECOVERY: Purpose.AGENT}[record.purpose])
            for record in outcome.records
        ),
        request=request if recovery != agents else None,
    )


WRONG: dict[str, Callable[[Attempt, Outcome], tuple[Attempt, Outcome]]] = {
    "signed for revoked agent": lambda a, o: (replace(a, asker=replace(a.asker, name="revoked agent", barred=True)), o),
    "agent got one for cluster edge": lambda a, o: (replace(a, asker=replace(a.asker, clusters=frozenset(("other",)))), o),
    "issued twice": lambda a, o: (a, replace(o, again=True)),
    "the records are not of what was signed": lambda a, o: (a, replace(o, records=o.records[:1])),
    "a signature without a record": lambda a, o: (a, replace(o, records=())),
    "its subject is": lambda a, o: (a, replace(o, records=tuple(replace(r, cluster=ClusterName("new")) for r in o.records))),
    "it lives too long": lambda a, o: (a, _exchanged(o)),
    "it ended as ConflictError": lambda a, _: (a, Outcome("ConflictError")),
    "a record without a certificate": lambda a, o: (a, replace(o, told="Failed")),
}


@pytest.mark.parametrize("finding", WRONG)
def test_the_judge_knows_what_is_wrong(finding: str) -> None:
    attempt, outcome = issued()
    assert judged(attempt, outcome, world()) == []
    assert [found for found in judged(*WRONG[finding](attempt, outcome), world()) if found.startswith(finding)]


def test_the_judge_knows_a_key_that_must_have_none() -> None:
    attempt, outcome = issued()
    ring = world().ring
    kept, ring.own = ring.own, [fresh()]
    try:
        assert "it is for a key that must have none" in judged(attempt, outcome, world())
    finally:
        ring.own = kept


def test_a_case_is_mutated_in_the_same_way_each_time() -> None:
    first, second = (ran(SEED, 3, 50) for _ in range(2))
    assert first.mutations == second.mutations
    assert first.outcomes == second.outcomes
