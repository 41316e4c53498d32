"""From claims to names: what a token must say, and that no token says a name that is the hub's to give."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.domain.authenticator import JWT, read
from hub.domain.login import MAX_GROUPS, MAX_NAME, ClaimRules, Named, admitted, named_by_claims
from machinery.errors import InvalidError, UnauthorizedError
from machinery.identity import OPERATOR_GROUP

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AT = int(NOW.timestamp())
RULES = ClaimRules("https://i", "muster")
GOOD: dict[str, Any] = {"iss": "https://i", "aud": "muster", "sub": "ann", "exp": AT + 1}


def named(rules: ClaimRules = RULES, **claims: Any) -> Named:
    return named_by_claims({**GOOD, **claims}, rules, NOW)


def test_user_and_groups_come_from_the_claims_that_are_named_with_their_prefixes() -> None:
    assert named(groups=["a", "", "b"]) == Named("ann", ("a", "b"))
    assert named(groups="a") == Named("ann", ("a",))
    rules = ClaimRules("https://i", "muster", "name", "corp:", "roles", "corp-")
    assert named(rules, name="Ann Lee", roles=["x"], groups=["y"]) == Named("corp:Ann Lee", ("corp-x",))
    assert named(aud=["others", "muster"]) == Named("ann")
    assert named(nbf=AT + 60) == Named("ann")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://other"}, "another issuer"),
        ({"iss": "https://i/"}, "another issuer"),
        ({"aud": "Muster"}, "not meant"),
        ({"aud": []}, "not meant"),
        ({"aud": None}, "not meant"),
        ({"aud": {"muster": 1}}, "neither"),
        ({"exp": AT}, "expired"),
        ({"exp": None}, "no end"),
        ({"exp": "soon"}, "no time"),
        ({"exp": True}, "no time"),
        ({"exp": float("nan")}, "no time"),
        ({"exp": 10**30}, "no time"),
        ({"nbf": AT + 61}, "not valid yet"),
        ({"sub": None}, "no claim"),
        ({"sub": 5}, "no claim"),
        ({"sub": ""}, "no claim"),
        ({"groups": {"a": 1}}, "neither"),
        ({"groups": ["a", 1]}, "neither"),
    ],
    ids=str,
)
def test_a_token_that_does_not_say_what_it_must_is_refused(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(UnauthorizedError, match=why):
        named(**claims)


def test_required_claims_must_be_there_as_they_are_required() -> None:
    rules = ClaimRules("https://i", "muster", required={"tenant": "one"})
    assert named(rules, tenant="one").user == "ann"
    for claims in ({}, {"tenant": "two"}, {"tenant": ["one"]}, {"tenant": 1}):
        with pytest.raises(UnauthorizedError, match="tenant"):
            named(rules, **claims)


def test_an_email_counts_when_it_is_not_said_to_be_unverified() -> None:
    rules = ClaimRules("https://i", "muster", username="email")
    assert named(rules, email="a@x").user == "a@x"
    assert named(rules, email="a@x", email_verified=True).user == "a@x"
    for verified in (False, "true", None, 1):
        with pytest.raises(UnauthorizedError, match="not verified"):
            named(rules, email="a@x", email_verified=verified)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "names no user"),
        (Named(""), "empty"),
        (Named("ann", uid="1"), "UID"),
        (Named("ann", extra={"scopes": ("all",)}), "extra"),
        (Named("system:admin"), "given by the hub"),
        (Named("system:open-cluster-management:c:a"), "given by the hub"),
        (Named("ann\n"), "not shown"),
        (Named(" ann"), "space"),
        (Named("\ud800"), "not shown"),
        (Named("a" * (MAX_NAME + 1)), "longer"),
        (Named("ann", ("b\x00",)), "group"),
        (Named("ann", ("g",) * (MAX_GROUPS + 1)), "groups"),
    ],
    ids=str,
)
def test_who_cannot_have_a_certificate(found: Named | None, why: str) -> None:
    with pytest.raises(UnauthorizedError, match=why):
        admitted(found)


def test_reserved_groups_are_left_out_and_operators_are_mapped_on_purpose_alone() -> None:
    login = admitted(Named("ann", ("ops", "system:masters", "system:authenticated", "ops")))
    assert (login.groups, login.left_out) == (("ops",), ("system:masters", "system:authenticated"))
    assert not login.is_our_own_name
    operator = admitted(Named("ann", ("ops",)), ("chiefs", "ops"))
    assert operator.groups == ("ops", OPERATOR_GROUP)
    assert operator.is_our_own_name
    assert admitted(Named("ann", ("system:masters",)), ("system:masters",)).groups == ()


def test_a_service_account_of_this_hub_keeps_its_name() -> None:
    login = admitted(Named("system:serviceaccount:a:b", ("system:serviceaccounts",), account="uid"))
    assert (login.user, login.groups, login.account) == ("system:serviceaccount:a:b", ("system:serviceaccounts",), "uid")
    assert login.is_our_own_name


WORDS = st.sampled_from(
    ["system:masters", "system:open-cluster-management:managed-clusters", "system:x", "ops", "", "SYSTEM:x", "é"]
)
NAMES = st.one_of(WORDS, st.text(max_size=20), st.text(max_size=20).map(lambda text: f"system:{text}"))
PREFIXES = st.sampled_from(["", "corp:", "sys"])
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), NAMES),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=5,
)


@given(
    user=NAMES,
    groups=st.lists(NAMES, max_size=5),
    prefixes=st.tuples(PREFIXES, PREFIXES),
    operators=st.lists(NAMES, max_size=2),
)
def test_no_token_says_a_reserved_name(user: str, groups: list[str], prefixes: tuple[str, str], operators: list[str]) -> None:
    rules = ClaimRules("https://i", "muster", username_prefix=prefixes[0], groups_prefix=prefixes[1])
    try:
        login = admitted(named(rules, sub=user, groups=groups), operators)
    except UnauthorizedError:
        return
    assert not login.user.startswith("system:")
    reserved = [group for group in login.groups if group.startswith("system:")]
    mapped = {prefixes[1] + group for group in groups} & {group for group in operators if not group.startswith("system:")}
    assert reserved == ([OPERATOR_GROUP] if mapped - {""} else [])
    assert set(login.groups) - {OPERATOR_GROUP} <= {prefixes[1] + group for group in groups}
    for name in (login.user, *login.groups):
        assert name
        assert name.isprintable()
        assert name.encode()


@given(claims=st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "groups", "email", "x"]), ANYTHING))
def test_whatever_a_token_says_it_is_refused_in_words_or_names_somebody(claims: dict[str, Any]) -> None:
    try:
        user = admitted(named(**claims)).user
    except UnauthorizedError as error:
        user = error.message
    assert user


def test_an_authenticator_is_read_with_its_defaults() -> None:
    spec = {"issuer": "https://i", "audience": "muster"}
    document = {"metadata": {"name": "corp", "uid": "u", "generation": 2}, "spec": spec}
    found = read(JWT, document)
    assert (found.claims, found.mark, found.authorities) == (RULES, ("u", 2), b"")
    assert found.address == "https://i"
    with pytest.raises(InvalidError, match="base64"):
        read(JWT, {**document, "spec": {**spec, "tls": {"certificateAuthorityData": "?"}}})


def test_a_token_may_begin_a_minute_in_the_future_and_no_more() -> None:
    assert named_by_claims({**GOOD, "exp": AT + 600, "nbf": AT + 61}, RULES, NOW + timedelta(seconds=1)).user == "ann"
