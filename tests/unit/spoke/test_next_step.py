"""The agent's decisions, row by row; nothing else is needed for them."""

from dataclasses import replace

from machinery.identity import HubId
from spoke.domain.next_step import Action, AgentState, Reaction, SessionEnd, decide, react

A, B = HubId("a"), HubId("b")
GOOD = AgentState(A, owner=A)


def test_an_observation_has_one_next_action() -> None:
    rows = [
        (AgentState(None), Action.GIVE_UP),
        (replace(GOOD, rests=True, is_flawed=True), Action.REST),
        (replace(GOOD, is_flawed=True), Action.GIVE_UP),
        (replace(GOOD, is_flawed=True, can_register=True, needs_epoch=True), Action.REGISTER),
        (replace(GOOD, is_new=True), Action.GIVE),
        (replace(GOOD, owner=None), Action.GIVE),
        (replace(GOOD, owner=B, needs_epoch=True), Action.GIVE),
        (replace(GOOD, needs_epoch=True), Action.RAISE_EPOCH),
        (GOOD, Action.KEEP),
    ]
    assert [(state, decide(state), action) for state, action in rows if decide(state) is not action] == []


def test_a_loss_has_one_reaction() -> None:
    """Only the hub's own word on the credential, or its time, makes the agent register again."""
    assert react(SessionEnd.UNAUTHENTICATED, has_previous=True, is_flawed=True) is Reaction.FALL_BACK
    for end in SessionEnd:
        for has_previous in (False, True):
            if end is SessionEnd.UNAUTHENTICATED and has_previous:
                continue
            for is_flawed, otherwise in ((True, Reaction.DISCARD), (False, Reaction.RETRY)):
                expected = Reaction.RAISE_EPOCH if end is SessionEnd.STALE else otherwise
                assert react(end, has_previous=has_previous, is_flawed=is_flawed) is expected, (end, has_previous, is_flawed)
