"""Settings: three places, one order, and all that is wrong at once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hub.fields import Address
from hub.settings import SettingsError, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.yaml"


def test_without_anything_the_defaults_stand() -> None:
    settings = load({}, None, {})
    assert str(settings.grpc_listen) == "127.0.0.1:8443"
    assert str(settings.https_listen) == "127.0.0.1:6443"
    assert settings.default_lease_duration == timedelta(seconds=60)
    assert settings.auto_approve == ()


def test_a_flag_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("log_level: error\nflush_window: 2s\nbeat-interval: 3s\n")
    settings = load({"log_level": "debug"}, file, {"HUB_LOG_LEVEL": "warning", "HUB_FLUSH_WINDOW": "500ms"})
    assert settings.log_level == "debug"
    assert settings.flush_window == timedelta(milliseconds=500)
    assert settings.beat_interval == timedelta(seconds=3)


def test_a_flag_that_was_not_given_overrides_nothing(file: Path) -> None:
    file.write_text("auto_approve: [edge-*]\nlog_level: error\n")
    settings = load({"log_level": None, "auto_approve": ()}, file, {})
    assert (settings.auto_approve, settings.log_level) == (("edge-*",), "error")


def test_lists_are_separated_by_commas_in_the_environment() -> None:
    assert load({}, None, {"HUB_AUTO_APPROVE": "edge-*, lab-?"}).auto_approve == ("edge-*", "lab-?")


def test_the_environment_of_the_process_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_SERVING_NAMES", "hub.example.org,10.0.0.7")
    monkeypatch.setenv("HUB_SERVICE_PORT", "tcp://10.0.0.1:6443")
    assert load({}).serving_names == ("hub.example.org", "10.0.0.7")


def test_everything_that_is_wrong_is_told_at_once_with_its_place(file: Path) -> None:
    file.write_text("grpc_listen: here\nagent_lifetime: soon\nno_such: 1\nbeat_interval: 5\nauto_approve: [A]\n")
    with pytest.raises(SettingsError) as caught:
        load({"log_level": "loud"}, file, {"HUB_HTTPS_LISTEN": "a:99999999"})
    text = str(caught.value)
    assert text.startswith("the settings have 7 problems:")
    for place in ("grpc_listen", "agent_lifetime", "no_such", "beat_interval", "auto_approve"):
        assert f"file {file}: {place}" in text
    assert "environment: https_listen" in text
    assert "flags: log_level" in text


@pytest.mark.parametrize(
    ("content", "said"),
    [("[", "is not YAML"), ("- a\n- b\n", "must be a mapping"), ("1: 2\n", "must be a mapping")],
)
def test_a_file_that_is_no_settings_file_is_named(file: Path, content: str, said: str) -> None:
    file.write_text(content)
    with pytest.raises(SettingsError, match=said):
        load({}, file, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load({}, tmp_path / "absent.yaml", {})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"grpc_listen": "10.0.0.1"}, "needs a port"),
        ({"grpc_listen": "127.0.0.1:6443"}, "both doors cannot listen"),
        ({"default_lease_duration": "1500ms"}, "whole seconds"),
        ({"default_lease_duration": "0s"}, "must be longer than 0s"),
        ({"default_lease_duration": "1s", "flush_window": "2s"}, "must not be longer than default_lease_duration"),
        ({"auto_approve": ("Edge",)}, "can match no cluster name"),
    ],
)
def test_values_that_contradict_are_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load(flags, None, {})


def test_a_password_in_the_database_url_is_not_shown() -> None:
    settings = load({"database_url": "postgresql://muster:canary@db/hub"}, None, {})
    assert "canary" not in repr(settings)
    assert settings.database_url is not None
    assert "canary" in settings.database_url.get_secret_value()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8443", "127.0.0.1", 8443),
        ("[::1]:8443", "::1", 8443),
        ("hub.example.org", "hub.example.org", 0),
        ("[2001:db8::7]", "2001:db8::7", 0),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, str(address)) == (host, port, text)


@pytest.mark.parametrize("text", ["", ":8443", "a b:1", "host:port", "https://host:1", "::1:8443x", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        Address.parse(text)


def test_settings_are_read_from_the_process_own_environment_whatever_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_GRPC_LISTEN", "0.0.0.0:18443")
    monkeypatch.setenv("HUB_HTTPS_ADVERTISED", "hub.example.org")
    monkeypatch.setenv("HUB_AUTO_APPROVE", "edge-*,core")
    monkeypatch.setenv("HUB_DEFAULT_LEASE_DURATION", "2s")
    monkeypatch.setenv("HUB_BEAT_INTERVAL", "500ms")
    monkeypatch.setenv("HUB_DATABASE_URL", "")
    settings = load({})
    assert str(settings.grpc_listen) == "0.0.0.0:18443"
    assert str(settings.https_advertised) == "hub.example.org"
    assert settings.auto_approve == ("edge-*", "core")
    assert settings.default_lease_duration == timedelta(seconds=2)
    assert settings.database_url is None


@pytest.mark.parametrize("suffix", ["org", "Example.org", ".example.org", "example.org.", "a b.org", "x" * 200 + ".org"])
def test_what_can_end_no_api_group_is_refused(suffix: str) -> None:
    with pytest.raises(SettingsError, match="can end no API group"):
        load({"api_group_suffix": suffix}, None, {})
