"""The command line of the hub: help that names every setting, and a version."""

from click.testing import CliRunner

from hub.__main__ import NO_FLAGS, main
from hub.settings import Settings
from machinery.product import TITLE


def test_every_setting_is_a_flag_with_its_help() -> None:
    answer = CliRunner().invoke(main, ["serve", "--help"])
    assert answer.exit_code == 0
    for name, field in Settings.model_fields.items():
        assert field.description
        assert (f"--{name.replace('_', '-')}" in answer.output) is (name not in NO_FLAGS)
    assert "HUB_DATABASE_URL" in answer.output


def test_durations_are_shown_as_they_are_written() -> None:
    output = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())
    assert "[default: 30d]" in output
    assert "timedelta" not in output


def test_the_version_is_told() -> None:
    answer = CliRunner().invoke(main, ["version"])
    assert answer.exit_code == 0
    assert answer.output.startswith(TITLE)


def test_wrong_settings_end_with_their_own_code() -> None:
    answer = CliRunner().invoke(main, ["serve", "--flush-window", "soon"])
    assert answer.exit_code == 2
    assert "flags: flush_window" in answer.output
