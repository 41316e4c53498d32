"""Flags over environment over file; everything that is wrong at once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from machinery.errors import InvalidError
from spoke.app import options_of
from spoke.domain.hubs import Policy, Unaccepted
from spoke.domain.patience import Detection
from spoke.flags import parser
from spoke.options import Hubs
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


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:", "127.0.0.1:70000"])
def test_an_address_for_probes_that_is_none_is_told(address: str) -> None:
    with pytest.raises(InvalidError, match="is not an address such as"):
        read(health_listen=address)


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


def test_the_names_of_open_cluster_management_are_taken_too() -> None:
    flags = parser().parse_args(["run", "--spoke-cluster-name=a", "--registration-auth=csr", "--bootstrap-kubeconfigs=x,y"])
    assert (flags.cluster_name, flags.registration_driver, flags.bootstrap_kubeconfig) == ("a", "csr", ["x,y"])
    environment = {"SPOKE_SPOKE_CLUSTER_NAME": "a", "SPOKE_REGISTRATION_AUTH": "grpc", "SPOKE_BOOTSTRAP_KUBECONFIGS": "x,y"}
    settings = load({}, environment, None)
    assert (settings.cluster_name, settings.registration_driver, len(settings.bootstrap_kubeconfig)) == ("a", "grpc", 2)


@pytest.mark.parametrize(("name", "driver"), [("", "auto"), ("auto", "auto"), ("csr", "csr"), ("grpc", "grpc")])
def test_a_driver_has_one_of_the_names_there_are(name: str, driver: str) -> None:
    assert read(registration_driver=name).registration_driver == driver


@pytest.mark.parametrize(("name", "said"), [("awsirsa", "AWS IRSA is not served"), ("gprc", "registration-driver")])
def test_an_unknown_driver_is_refused(name: str, said: str) -> None:
    """OCM takes it for csr."""
    with pytest.raises(InvalidError, match=said):
        read(registration_driver=name)


@pytest.mark.parametrize("name", ["Bad", "a_b", "a" * 64, "-a", "test-cluster-!@#"])
def test_a_bad_agent_id_or_cluster_name_is_refused_before_anything_is_sent(name: str) -> None:
    """OCM looks at the cluster name alone."""
    for setting in ("cluster_name", "agent_id"):
        with pytest.raises(InvalidError, match=setting.replace("_", "-")):
            read(**{setting: name})


@pytest.mark.parametrize(("seconds", "fine"), [("600", True), ("599", False), ("0", False)])
def test_a_token_of_an_add_on_lives_ten_minutes_at_least(seconds: str, *, fine: bool) -> None:
    """OCM means it and checks nothing."""
    if fine:
        assert read(addon_token_expiration_seconds=seconds).addon_token_expiration_seconds == 600
    else:
        with pytest.raises(InvalidError, match="addon-token-expiration-seconds"):
            read(addon_token_expiration_seconds=seconds)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"feature_gates": "NoSuch=true"}, 'no feature gate "NoSuch"'),
        ({"feature_gates": "MultipleHubs=true"}, "expect at least 2 bootstrap kubeconfigs"),
        ({"cluster_labels": "a b=c"}, "not labels"),
        ({"addon_kubeclient_registration_auth": "x"}, "addon-kubeclient-registration-auth"),
        ({"addon_lease_check_period": "0s"}, "addon-lease-check-period"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(flags: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        read(**flags)


def test_several_hubs_satisfy_the_gate_of_that_name() -> None:
    assert read(feature_gates="MultipleHubs=true", bootstrap_kubeconfig="a,b").feature_gates == {"MultipleHubs": "true"}


def test_settings_of_add_ons_have_ocms_defaults() -> None:
    settings = read()
    assert settings.addon_kubeclient_registration_auth == "csr"
    assert settings.addon_token_expiration_seconds == 31_536_000
    assert (settings.addon_lease_check_period, settings.addon_lease_grace) == (timedelta(seconds=30), timedelta(minutes=5))


def test_the_choice_between_hubs_is_set_in_times_people_write() -> None:
    settings = read(fail_back_after="30m", hub_timeout="600", unaccepted_hub="wait", hub_keepalive="20s", hub_silence="8s")
    options = options_of(settings)
    assert options.hubs.policy == Policy(Unaccepted.WAIT, timedelta(minutes=30))
    assert options.hubs.patience == timedelta(minutes=10)
    assert options.detection == Detection(timedelta(seconds=20), timedelta(seconds=5), timedelta(seconds=8))
    assert options_of(read()).hubs == Hubs()
    assert options_of(read()).detection == Detection()


@pytest.mark.parametrize(
    "wrong", [{"hub_keepalive": "4s"}, {"hub_silence": "0s"}, {"unaccepted_hub": "never"}, {"fail_back_after": "-1"}]
)
def test_what_no_hub_would_bear_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        read(**wrong)


def test_open_cluster_managements_time_out_is_taken_by_its_name() -> None:
    assert load(NEEDED, {"SPOKE_HUB_CONNECTION_TIMEOUT_SECONDS": "600"}, None).hub_timeout == timedelta(minutes=10)
    assert parser().parse_args(["run", "--hub-connection-timeout-seconds=600"]).hub_timeout == "600"
