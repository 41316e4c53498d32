"""Flags over environment over file; everything that is wrong at once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from machinery.errors import InvalidError
from spoke.__main__ import parser
from spoke.settings import Settings, load, own_namespace

NEEDED = {"bootstrap_kubeconfig": "b"}


def read(**flags: Any) -> Settings:
    return load({**NEEDED, **flags}, {}, None)


def test_defaults_are_ocms() -> None:
    settings = read()
    assert settings.cluster_healthcheck_period == timedelta(minutes=1)
    assert settings.max_custom_cluster_claims == 20
    assert settings.component_namespace == "open-cluster-management-agent"
    assert settings.health_listen.startswith("127.0.0.1:")


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "spoke.yaml"
    file.write_text("cluster-name: file\nagent-id: file\nlog_level: debug\nbootstrap-kubeconfig: f\n")
    environment = {"SPOKE_CLUSTER_NAME": "env", "SPOKE_AGENT_ID": "env", "OTHER": "x"}
    settings = load({"cluster_name": "flag", "agent_id": None}, environment, file)
    assert (settings.cluster_name, settings.agent_id, settings.log_level) == ("flag", "env", "debug")
    assert settings.bootstrap_kubeconfig == (Path("f"),)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "spoke.yaml"
    file.write_text("cluster-name: Bad_Name\ncluster-healthcheck-period: 0s\nno-such: 1\nmax-custom-cluster-claims: many\n")
    with pytest.raises(InvalidError) as refused:
        load({}, {}, file)
    for said in (
        "bootstrap-kubeconfig: is required",
        "cluster-name: ",
        "greater than zero",
        "no-such: there is no",
        "max-custom",
    ):
        assert said in refused.value.message


@pytest.mark.parametrize(("seconds", "fine"), [(0, True), (3600, True), (3599, False)])
def test_a_certificate_lives_an_hour_at_least(seconds: int, *, fine: bool) -> None:
    if fine:
        assert read(client_cert_expiration_seconds=seconds).client_cert_expiration_seconds == seconds
    else:
        with pytest.raises(InvalidError, match="at least 3600"):
            read(client_cert_expiration_seconds=seconds)


@pytest.mark.parametrize("url", ["http://a", "a", "ftp://b"])
def test_external_urls_are_https(url: str) -> None:
    with pytest.raises(InvalidError, match=f'"{url}" is invalid'):
        read(spoke_external_server_urls=f"https://ok,{url}")


@pytest.mark.parametrize(
    ("text", "duration"),
    [("90s", 90), ("1m", 60), ("500ms", 0.5), ("2h", 7200), ("15", 15), (30, 30)],
)
def test_durations_are_written_as_people_write_them(text: Any, duration: float) -> None:
    assert read(cluster_healthcheck_period=text).cluster_healthcheck_period == timedelta(seconds=duration)


def test_lists_are_written_with_commas() -> None:
    settings = read(reserved_cluster_claim_suffixes="a.io, b.io", cluster_annotations="k=v,l=w=x")
    assert settings.reserved_cluster_claim_suffixes == ("a.io", "b.io")
    assert settings.cluster_annotations == {"k": "v", "l": "w=x"}


@pytest.mark.parametrize("text", ["[", "- a", "3"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "spoke.yaml"
    file.write_text(text)
    with pytest.raises(InvalidError, match=r"spoke\.yaml"):
        load({}, {}, file)


def test_the_secrets_are_in_the_pods_own_namespace(tmp_path: Path) -> None:
    assert own_namespace(tmp_path) == "open-cluster-management-agent"
    (tmp_path / "namespace").write_text("edge\n")
    assert own_namespace(tmp_path) == "edge"


def test_hubs_are_listed_by_repeating_or_with_commas_in_their_order(tmp_path: Path) -> None:
    flags = vars(parser().parse_args(["run", "--bootstrap-kubeconfig", "a,b", "--bootstrap-kubeconfigs", "c"]))
    listed = load({"bootstrap_kubeconfig": flags["bootstrap_kubeconfig"]}, {}, None)
    assert listed.bootstrap_kubeconfig == (Path("a"), Path("b"), Path("c"))
    assert load({}, {"SPOKE_BOOTSTRAP_KUBECONFIGS": "a, b"}, None).bootstrap_kubeconfig == (Path("a"), Path("b"))
    file = tmp_path / "spoke.yaml"
    file.write_text("bootstrap-kubeconfigs: [a, b]\nbootstrap-kubeconfig-secret: [s, t]\nstandby-registration: false\n")
    settings = load({}, {}, file)
    assert settings.bootstrap_kubeconfig == (Path("a"), Path("b"))
    assert settings.bootstrap_kubeconfig_secret == ("s", "t")
    assert not settings.standby_registration


def test_a_secret_is_as_good_as_a_file_and_nothing_is_too_little() -> None:
    assert load({"bootstrap_kubeconfig_secret": ["hub-a,hub-b"]}, {}, None).bootstrap_kubeconfig == ()
    with pytest.raises(InvalidError, match="bootstrap-kubeconfig: is required"):
        load({}, {"SPOKE_BOOTSTRAP_KUBECONFIG_SECRET": " "}, None)
