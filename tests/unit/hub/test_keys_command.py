"""The command that makes the keys of a new hub."""

from pathlib import Path

from click.testing import CliRunner

from hub.__main__ import main


def test_the_keys_of_a_hub_are_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = CliRunner().invoke(main, ["keys", "create", str(folder)])
    assert (made.exit_code, "--keys-dir" in made.output) == (0, True)
    names = sorted(path.name.split("-")[0] for path in folder.iterdir())
    assert names == ["ca.crt", "ca.key", "secrets.key", "token"]
    again = CliRunner().invoke(main, ["keys", "create", str(folder)])
    assert again.exit_code == 1
    assert "has keys already" in again.output
