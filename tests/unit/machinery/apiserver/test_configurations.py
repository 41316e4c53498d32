"""The body of an apply: JSON or YAML, and nothing that could not be kept."""

import pytest

from machinery.apiserver.bodies import decode_configuration
from machinery.errors import BadRequestError


@pytest.mark.parametrize(
    "body",
    [rb'{"a": "\ud800"}', rb'{"\udfff": 1}', rb'a: "\uD800"', b'{"a": ' + b"9" * 5_000 + b"}", b'{"a": [' * 100_000, b"{"],
    ids=["half a character", "half a key", "the same in YAML", "a number without end", "levels without end", "half an object"],
)
async def test_what_cannot_be_kept_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="error decoding patch"):
        await decode_configuration(body)


async def test_fields_that_are_said_twice_are_told_with_the_last_of_each() -> None:
    assert await decode_configuration(b'{"a": 1, "b": {"c": 2}, "a": 3}') == ({"a": 3, "b": {"c": 2}}, ['duplicate field "a"'])
