"""The pages that list settings are what the settings say."""

from pathlib import Path

import pytest

from tests.settings_pages import pages


@pytest.mark.parametrize(("path", "content"), list(pages()), ids=lambda value: value.name if isinstance(value, Path) else "")
def test_every_setting_is_listed_as_it_is(path: Path, content: str) -> None:
    assert path.read_text() == content, "run `make reference`, and commit what it writes"
