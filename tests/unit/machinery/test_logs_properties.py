"""What is not looked through for secrets has none."""

import base64

from hypothesis import given, settings
from hypothesis import strategies as st

from machinery import logs
from machinery.logs import REDACTED, redacted

PEM = "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIBcanary\n-----END PRIVATE KEY-----"
SECRETS = (
    PEM,
    base64.b64encode(PEM.encode()).decode(),
    f"{'0a' * 8}.{'z9' * 16}",
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl",
    "postgresql://hub:canary@db/hub",
    "://u:p@",
    "Bearer canarycanary",
    "bEARER canary~canary",
)
PIECES = st.one_of(
    st.sampled_from((*SECRETS, ".", "://", "eyJ", "bearer ", "@", ":", " ", "0a" * 8, "cluster1")), st.text(max_size=8)
)
TEXTS = st.lists(PIECES, max_size=5).map("".join)


@settings(max_examples=500, deadline=None)
@given(TEXTS)
def test_the_short_look_says_what_the_whole_look_says(text: str) -> None:
    assert redacted(text) == logs._SECRET_TEXT.sub(REDACTED, text)
    assert redacted(text.encode()) == redacted(text)


def test_every_secret_is_seen() -> None:
    for secret in SECRETS:
        assert REDACTED in redacted(secret)
