"""Who a bootstrap token is: by its hash, re-checked each time, and no longer once its credential has ended."""

from datetime import timedelta

import pytest

from hub.access import BootstrapTokens
from hub.domain.credential import CredentialRecord, token_hash, token_id, token_of
from hub.services import credentials
from hub.services.credentials import Terms
from machinery.clock import ManualClock
from machinery.errors import InvalidError, UnauthorizedError
from machinery.identity import ClusterName, CredentialId
from tests.fakes.memory_store import MemoryStore

TERMS = Terms(ClusterName("edge1"), 1, timedelta(hours=1))


@pytest.fixture
def tokens(store: MemoryStore) -> BootstrapTokens:
    return BootstrapTokens(store)


@pytest.fixture
async def made(store: MemoryStore) -> tuple[CredentialRecord, str]:
    return await store.run(credentials.create_token, TERMS, "ann")


async def test_a_token_is_its_credential_and_the_record_holds_a_hash_only(
    tokens: BootstrapTokens, made: tuple[CredentialRecord, str]
) -> None:
    record, token = made
    assert await tokens.identify(token) == record
    assert (record.cluster, record.uses, record.token_hash) == ("edge1", 1, token_hash(token))
    assert token.partition(".")[2] not in repr(record)


async def test_two_tokens_share_nothing(store: MemoryStore) -> None:
    first, second = [await store.run(credentials.create_token, TERMS, "ann") for _ in range(2)]
    assert first[0].id != second[0].id
    assert first[1].partition(".")[2] != second[1].partition(".")[2]


async def test_another_secret_for_a_known_id_is_refused(tokens: BootstrapTokens, made: tuple[CredentialRecord, str]) -> None:
    record, token = made
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    with pytest.raises(UnauthorizedError, match=r"^invalid bearer token$"):
        await tokens.identify(wrong)
    with pytest.raises(UnauthorizedError, match=r"^invalid bearer token$"):
        await tokens.identify(token_of(CredentialId("0" * 16), token.partition(".")[2]))
    assert await tokens.identify(token) == record


async def test_a_credential_that_is_a_certificate_has_no_token(
    tokens: BootstrapTokens, store: MemoryStore, clock: ManualClock
) -> None:
    record = CredentialRecord(CredentialId("0123456789abcdef"), None, None, clock.now(), clock.now(), "ann")
    await store.run(lambda tx: tx.credentials.add(record))
    with pytest.raises(UnauthorizedError, match=r"^invalid bearer token$"):
        await tokens.identify(token_of(record.id, "a" * 32))


async def test_a_token_ends_with_its_credential(
    tokens: BootstrapTokens, made: tuple[CredentialRecord, str], clock: ManualClock
) -> None:
    clock.advance(TERMS.lifetime - timedelta(microseconds=1))
    assert await tokens.identify(made[1]) == made[0]
    clock.advance(timedelta(microseconds=1))
    with pytest.raises(UnauthorizedError, match="expired at 2026-01-01T01:00:00Z"):
        await tokens.identify(made[1])


async def test_a_token_is_refused_the_moment_its_credential_is_revoked(
    tokens: BootstrapTokens, made: tuple[CredentialRecord, str], store: MemoryStore
) -> None:
    await store.run(credentials.revoke, made[0].id)
    with pytest.raises(UnauthorizedError, match="is revoked"):
        await tokens.identify(made[1])


@pytest.mark.parametrize(
    "token", ["", "guess", "a.b", "eyJhbGciOiJFUzI1NiJ9.e30.c2ln", "0123456789abcdef.SHORT", f"0123456789abcdeX.{'a' * 32}"]
)
async def test_tokens_of_other_kinds_are_left_to_others(tokens: BootstrapTokens, token: str) -> None:
    assert await tokens.identify(token) is None
    assert token_id(token) is None


async def test_each_revoked_credential_is_told_once(
    tokens: BootstrapTokens, made: tuple[CredentialRecord, str], store: MemoryStore, clock: ManualClock
) -> None:
    told: list[CredentialId] = []
    tokens.listen(told.append)
    await tokens.poll()
    await store.run(credentials.revoke, made[0].id)
    for _ in range(3):
        clock.advance(timedelta(milliseconds=500))
        await tokens.poll()
    assert told == [made[0].id]


@pytest.mark.parametrize("terms", [Terms(None, 0, timedelta(hours=1)), Terms(None, 1, timedelta())])
async def test_a_token_that_is_good_for_nothing_is_not_made(store: MemoryStore, terms: Terms) -> None:
    with pytest.raises(InvalidError):
        await store.run(credentials.create_token, terms, "ann")
