"""What hubctl makes of answers that are no hub's."""

import pytest

from hub.cli.failures import CommandError
from hub.cli.refusals import document_of


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b"\xff", b"[" * 100_000])
def test_an_answer_that_is_no_object_is_told_as_no_hubs(content: bytes) -> None:
    with pytest.raises(CommandError, match="not a hub's"):
        document_of(content)
