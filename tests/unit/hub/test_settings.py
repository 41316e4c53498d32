"""Settings of the hub: their sources, refusals, addresses, database URLs, the replica's name, and the command line."""

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hub.__main__ import NO_FLAGS, main
from hub.extensions.settings import Settings, load
from hub.replica.heartbeat import replica_name
from hub.replica.installation import Addresses
from hub.settings.fields import Address
from hub.store.engine.engine import parse_url
from hub.store.engine.postgres import connection_arguments
from hub.store.engine.timeouts import HELD, SessionLimits
from machinery.errors import InvalidError
from machinery.product import TITLE
from machinery.runtime.directory import DataDirectory
from tests.checks import CASE_FILES, PYTHON, WRONG_TEXTS, check_each, check_refusals, check_results, present, refusal

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what the test is about
WRONG_VALUES = (*WRONG_TEXTS, "\udcff", [[1]], {"a": [None]}, -1, 1.5, True, 10**400, float("nan"), float("inf"), ["x\0"])
KUBE_CERT = {"kube_cert_agent": "true", "kube_cert_agent_image": "muster/hub:1"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hub.yaml"


def with_flags(flags: dict[str, Any]) -> Settings:
    return load(flags, None, {})


def test_flag_that_was_given_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("log_level: error\nflush_window: 2s\nbeat-interval: 3s\n")
    settings = load({"log_level": "debug"}, file, {"HUB_LOG_LEVEL": "warning", "HUB_FLUSH_WINDOW": "500ms"})
    assert (settings.log_level, settings.flush_window) == ("debug", timedelta(milliseconds=500))
    assert settings.beat_interval == timedelta(seconds=3)
    file.write_text("auto_approve: [edge-*]\nlog_level: error\n")
    settings = load({"log_level": None, "auto_approve": ()}, file, {})
    assert (settings.auto_approve, settings.log_level) == (("edge-*",), "error")


def test_environment_of_the_process_is_read_for_every_type(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "HUB_GRPC_LISTEN": f"{EVERYWHERE}:18443",
        "HUB_HTTPS_ADVERTISED": "hub.example.org",
        "HUB_AUTO_APPROVE": "edge-*, lab-?",
        "HUB_SERVING_NAMES": "hub.example.org,10.0.0.7",
        "HUB_DEFAULT_LEASE_DURATION": "2s",
        "HUB_BEAT_INTERVAL": "500ms",
        "HUB_DATABASE_URL": "",
        "HUB_SERVICE_PORT": "tcp://10.0.0.1:6443",  # of Kubernetes, and no setting
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load({})
    assert (str(settings.grpc_listen), str(settings.https_advertised)) == (f"{EVERYWHERE}:18443", "hub.example.org")
    assert (settings.auto_approve, settings.serving_names) == (("edge-*", "lab-?"), ("hub.example.org", "10.0.0.7"))
    assert (settings.default_lease_duration, settings.database_url) == (timedelta(seconds=2), None)


def test_all_problems_are_reported_at_once_with_their_sources(file: Path) -> None:
    file.write_text("grpc_listen: here\nagent_lifetime: soon\nno_such: 1\nbeat_interval: 5\nauto_approve: [A]\n")
    text = str(present(refusal(InvalidError, load, {"log_level": "loud"}, file, {"HUB_HTTPS_LISTEN": "a:99999999"})))
    assert text.startswith("the settings have 7 problems:")
    for place in ("grpc_listen", "agent_lifetime", "no_such", "beat_interval", "auto_approve"):
        assert f"file {file}: {place}" in text
    assert "environment: https_listen" in text
    assert "flags: log_level" in text

    def read(content: str | None) -> None:
        file.unlink() if content is None else file.write_text(content)
        load({}, file, {})

    rows = [("[", "is not YAML"), ("- a\n- b\n", "must be a mapping"), ("1: 2\n", "no such setting")]
    check_refusals(InvalidError, read, [*rows, (None, "cannot be read: No such file")])


def test_no_refusal_of_a_setting_is_in_the_terms_of_python() -> None:
    def check(name: str, value: Any) -> None:
        refused = refusal(InvalidError, load, {name: value}, None, {})
        message = (refused.message if refused else "").replace(str(value)[:80], "")
        assert not PYTHON.search(message), message

    check_each(check, ((name, value) for name in Settings.model_fields for value in WRONG_VALUES))


def test_values_that_cannot_be_used_are_refused() -> None:
    check_refusals(InvalidError, with_flags, yaml.safe_load((CASE_FILES / "hub-settings.yaml").read_text())["refused"])
    settings = with_flags({**KUBE_CERT, "kubernetes_ca_groups": ("dev",), "kube_cert_agent_labels": ("a/b=c",)})
    assert (settings.kube_cert_agent, settings.kubernetes_ca_groups) == (True, ("dev",))
    assert load({}, None, {"HUB_LEADER_ELECT_POLL_PERIOD": "5ms"}).election_timings.poll == timedelta(milliseconds=5)


def test_addresses_are_parsed_advertised_and_named_in_the_certificate() -> None:
    rows = (
        ("127.0.0.1:8443", ("127.0.0.1", 8443, "127.0.0.1:8443")),
        ("[::1]:8443", ("::1", 8443, "[::1]:8443")),
        ("hub.example.org", ("hub.example.org", 0, "hub.example.org")),
        ("[2001:db8::7]", ("2001:db8::7", 0, "[2001:db8::7]")),
    )
    check_results(lambda text: (address := Address.parse(text)) and (address.host, address.port, str(address)), rows)
    wrong = ("", ":8443", "a b:1", "host:port", "https://host:1", "::1:8443x", "host:70000")
    check_refusals(ValueError, Address.parse, [(text, "is not an address") for text in wrong])
    found = addresses()
    assert (str(found.grpc), str(found.https), found.dns_names) == ("127.0.0.1:8443", "127.0.0.1:6443", ("localhost",))
    assert found.ip_addresses == ("127.0.0.1", "::1")
    found = addresses(
        grpc_listen=f"{EVERYWHERE}:9443", grpc_advertised="hub.example.org", https_advertised="api.example.org:443"
    )
    assert (str(found.grpc), str(found.https)) == ("hub.example.org:9443", "api.example.org:443"), "with the port of the socket"
    assert found.dns_names == ("api.example.org", "hub.example.org", "localhost")
    found = addresses(serving_names=("hub.internal", "10.0.0.7"))
    assert "hub.internal" in found.dns_names
    assert "10.0.0.7" in found.ip_addresses
    for listen, seen in ((f"{EVERYWHERE}:8443", "127.0.0.1:8443"), ("[::]:8443", "[::1]:8443")):
        found = addresses(grpc_listen=listen)
        assert str(found.grpc) == seen
        assert not {EVERYWHERE, "::"} & {*found.ip_addresses}, "a wildcard is never advertised"


def addresses(**flags: Any) -> Addresses:
    return Addresses.of(with_flags(flags))


def arguments(url: str) -> dict[str, Any]:
    return dict(connection_arguments(parse_url(url), SessionLimits()))


def test_database_url_names_one_server_or_several_as_postgresqls_own_tools_write_them() -> None:
    def check(url: str, host: str, port: str) -> None:
        given = arguments(url)
        assert (given["host"], str(given.get("port", "")).strip(",")) == (host, port)
        assert (given["user"], given["dbname"], given.get("target_session_attrs")) == ("hub", "fleet", "primary")

    rows = (
        ("postgresql://hub@one,two/fleet", "one,two", "5432,5432"),
        ("postgresql://hub:p%40ss@one:5433,two/fleet", "one,two", "5433,5432"),
        ("postgres://hub@one,two:5433/fleet", "one,two", "5432,5433"),
        ("postgresql://hub@[::1]:5433,[fe80::2]/fleet", "::1,fe80::2", "5433,5432"),
        ("postgresql://hub@/fleet?host=/run/a,/run/b", "/run/a,/run/b", ""),
        *(("postgresql://hub@one:5433/fleet", "one", "5433"), ("postgres://hub@one/fleet", "one", "")),
    )
    check_each(check, rows)
    given = arguments(
        "postgresql://hub@one,two/fleet?sslmode=verify-full&target_session_attrs=read-write&connect_timeout=600&options=-c%20a=b"
    )
    assert (given["sslmode"], given["target_session_attrs"]) == ("verify-full", "read-write")
    assert given["connect_timeout"] == HELD.total_seconds(), "the URL cannot exceed the limits"
    assert given["options"].startswith("-c a=b -c idle_in_transaction_session_timeout=5000")


def test_password_of_the_database_is_kept_and_never_shown() -> None:
    settings = with_flags({"database_url": "postgresql://muster:canary@db/hub"})
    assert "canary" not in repr(settings)
    assert "canary" in present(settings.database_url).get_secret_value()
    assert arguments("postgresql://hub:p%40s,s@one,two/fleet")["password"] == "p@s,s"  # noqa: S105 - made up
    for url in ("postgresql://hub@one,two:port/fleet", "postgresql://hub:secret@one:two:three/fleet"):
        assert "secret" not in str(present(refusal(InvalidError, arguments, url)))


def test_statements_and_silent_connections_end_within_a_third_of_the_lease() -> None:
    """For leases below three seconds a statement has a second; PostgreSQL and TCP count in whole seconds, two at least."""
    for lease, milliseconds in ((0.1, 1000), (2.999, 1000), (6, 2000), (15, 5000), (137, 5000)):
        options = SessionLimits.of_lease(timedelta(seconds=lease)).options()
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            assert f"-c {name}={milliseconds} " in f"{options} ", (lease, name)
        assert f"-c lock_timeout={milliseconds * 4 // 5} " in options, "so that a lock is named as what was waited for"
    for seconds in (0.3, 6, 10, 15):
        limits = SessionLimits.of_lease(timedelta(seconds=seconds))
        server = dict(pair.split("=") for pair in limits.options().replace("-c ", "").split())
        client, third = limits.arguments(), max(seconds / 3, 2)
        for timeout in (int(server["tcp_user_timeout"]), client["tcp_user_timeout"]):
            assert 0 < timeout <= max(seconds / 3, 1) * 1000 + 1, seconds
        for side in (client, {name.removeprefix("tcp_"): int(value) for name, value in server.items()}):
            assert side["keepalives_idle"] + side["keepalives_interval"] * side["keepalives_count"] <= third, seconds
        assert client["connect_timeout"] <= max(round(third), 2), seconds
    assert SessionLimits.of_lease(timedelta(seconds=137)) == SessionLimits(), "a long lease extends no timeout"


SHARED = {"HUB_DATABASE_URL": "postgresql://db/hub"}


def named(folder: Path, environment: dict[str, str], name: str | None = None) -> str:
    with DataDirectory(folder, "hub") as directory:
        return replica_name(load({"replica_name": name}, None, environment), directory, environment)


def test_name_of_a_replica_is_of_its_setting_pod_host_or_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Machine_7.example.com")
    assert named(tmp_path, {**SHARED, "POD_NAME": "hub-1"}, "east") == "east"
    assert (named(tmp_path, {**SHARED, "POD_NAME": "hub-1"}), named(tmp_path, SHARED)) == ("hub-1", "machine-7.example.com")
    first = named(tmp_path / "a", {"POD_NAME": "hub-0"})
    assert named(tmp_path / "a", {}) == first, "on the embedded database the data directory keeps it"
    assert named(tmp_path / "b", {}) != first
    (tmp_path / "a" / "replica").write_text("of-an-earlier-release\n")
    assert named(tmp_path / "a", {}) == "of-an-earlier-release"
    wrong = ("Hub", "a b", "-a", "a" * 201, "a/b")
    check_refusals(
        InvalidError, lambda name: named(tmp_path, SHARED, name), [(name, "is not a name for a replica") for name in wrong]
    )


def test_help_lists_every_setting_with_its_default_and_wrong_ones_have_their_own_exit_code() -> None:
    answer = CliRunner().invoke(main, ["serve", "--help"])
    assert answer.exit_code == 0
    for name, field in Settings.model_fields.items():
        assert field.description
        assert (f"--{name.replace('_', '-')}" in answer.output) is (name not in NO_FLAGS), name
    assert "HUB_DATABASE_URL" in answer.output
    output = " ".join(answer.output.split())
    assert "[default: 30d]" in output
    assert not PYTHON.search(output)
    assert "timedelta" not in output
    answer = CliRunner().invoke(main, ["serve", "--flush-window", "soon"])
    assert answer.exit_code == 2
    assert "flags: flush_window" in answer.output
    answer = CliRunner().invoke(main, ["version"])
    assert answer.exit_code == 0
    assert answer.output.startswith(TITLE)
