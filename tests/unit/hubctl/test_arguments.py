"""What holds for every command of hubctl, and how commands read their arguments."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest

from hubctl.__main__ import COMMANDS, SYNONYMS, hubctl
from hubctl.arguments.targets import ObjectReference
from hubctl.client.http import WATCH_TIMEOUT
from hubctl.client.resources import CLUSTERS
from hubctl.commands.clusters import actions
from hubctl.commands.objects.label import read_taints, tainted
from hubctl.commands.objects.wait import read_wanted, time_left, wait_for
from hubctl.errors import CommandError, ConnectionLostError
from hubctl.jsonpath import as_json, find, parse_path, parse_template, rendered
from hubctl.kubectl_plugin import offered
from hubctl.reference import CODES, drift, pages, write
from tests.checks import check_refusal, refusal
from tests.fakes import hubctl as here
from tests.fakes.hubctl import ALL, LEAVES, typed
from tests.fakes.kubectl import DOCUMENT, KINDER, SAME, WRONG

OLD = [{"key": "a", "value": "1", "effect": "NoSelect", "timeAdded": "T"}, {"key": "a", "effect": "PreferNoSelect"}]


def apply(*specs: str, overwrite: bool = False) -> list[dict[str, str]]:
    return tainted(OLD, *read_taints(specs), overwrite=overwrite)


def test_taints_are_added_kept_overwritten_on_request_and_removed() -> None:
    assert apply("b=2:NoSelect") == [*OLD, {"key": "b", "value": "2", "effect": "NoSelect"}]
    assert apply("b:NoSelectIfNew")[-1] == {"key": "b", "effect": "NoSelectIfNew"}
    assert apply("a=1:NoSelect") == OLD, "one that is there keeps its time"
    check_refusal(CommandError, apply, "a=2:NoSelect", match="--overwrite")
    assert apply("a=2:NoSelect", overwrite=True) == [OLD[1], {"key": "a", "value": "2", "effect": "NoSelect"}]
    assert (apply("a:NoSelect-"), apply("a-")) == (OLD[1:], [])
    with pytest.raises(CommandError) as refused:
        apply("z-")
    assert refused.value.code == 3
    for specs, words in (
        *((["a=1"], "is not a taint"), (["a"], "lacks its effect"), (["a:NoSchedule"], 'no effect "NoSchedule"')),
        *((["a=1=2:NoSelect"], "is not a taint"), ([":NoSelect"], "is not a taint")),
        *((["a:NoSelect", "a=1:NoSelect"], "given twice"), (["a:NoSelect", "a-"], "both set and removed")),
    ):
        with pytest.raises(CommandError, match=words) as refused:
            read_taints(specs)
        assert refused.value.code == 2, specs


def cluster(status: str = "True", *, observed: int | None = None) -> dict[str, Any]:
    condition = {"type": "ManagedClusterConditionAvailable", "status": status}
    accepted = {"type": "HubAcceptedManagedCluster", "status": "True"}
    seen = {} if observed is None else {"observedGeneration": observed}
    return {
        "metadata": {"name": "edge1", "generation": 2},
        "spec": {"taints": [{"key": "a"}, {"key": "b"}], "lease": 60},
        "status": {"conditions": [{**condition, **seen}, accepted], "phase": "x=y"},
    }


MET = (
    *("condition=Available", "condition=available=true", "condition=ManagedClusterConditionAvailable=True"),
    *("condition=Accepted", "condition=HubAcceptedManagedCluster", "create"),
    *("jsonpath={.spec.lease}=60", "jsonpath={.spec.lease}", "jsonpath=.spec.lease=60", "jsonpath={.status.phase}=x=y"),
    "jsonpath={.spec.taints[?(@.key==\"b\")].key}='b'",
    'jsonpath={.status.conditions[?(@.type=="HubAcceptedManagedCluster")].status}=True',
)
NOT_MET = ("condition=Available=False", "condition=Joined", "delete", "jsonpath={.spec.lease}=61", "jsonpath={.spec.nope}")


def test_wait_knows_when_a_condition_a_value_a_creation_or_a_deletion_is_there() -> None:
    assert [wanted for wanted in MET if not read_wanted(wanted).met(cluster())] == []
    assert [wanted for wanted in NOT_MET if read_wanted(wanted).met(cluster())] == []
    available = read_wanted("condition=Available")
    assert not available.met(cluster(observed=1)), "a condition of an older spec does not count"
    assert available.met(cluster(observed=2))
    assert read_wanted("delete").met(None)
    assert not read_wanted("create").met(None)
    with pytest.raises(CommandError) as refused:
        read_wanted("condition=Available").met(None)
    assert refused.value.code == 3
    for wanted in ("condition", "condition=", "jsonpath", "jsonpath=", "available", "delete=x"):
        with pytest.raises(CommandError, match="write condition=TYPE") as refused:
            read_wanted(wanted)
        assert refused.value.code == 2, wanted
    check_refusal(CommandError, read_wanted("jsonpath={.spec.taints[*].key}=a").met, cluster(), match="finds 2 values")
    assert time_left("0")() <= 0
    assert 99 * 3600 < time_left("100h")() <= 100 * 3600
    check_refusal(CommandError, time_left, "soon", match="--timeout")


@pytest.mark.parametrize("seconds", [100.0, 30.0])
def test_a_wait_reads_the_object_again_after_its_connection_was_silent(seconds: float) -> None:
    silences, lists = list[float](), [{"items": each, "metadata": {"resourceVersion": "7"}} for each in ([], [cluster()])]

    def stream(_path: str, query: dict[str, str], *, silence: float) -> Iterator[dict[str, Any]]:
        assert query["allowWatchBookmarks"] == "true"
        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "8"}}}
        silences.append(silence)
        raise ConnectionLostError("the hub does not answer in time")

    hub, one = Mock(get=Mock(side_effect=lists), stream=stream), ObjectReference(CLUSTERS, "edge1")
    assert wait_for(hub, one, read_wanted("create"), lambda: seconds - sum(silences)) == cluster()
    assert silences == [min(seconds + 1, WATCH_TIMEOUT)]


def test_many_clusters_are_asked_at_a_bounded_rate_whether_they_have_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, answers = list[float](), [[{"renewed": False}]] * 300 + [[{"renewed": True}]] * 100
    monkeypatch.setattr(actions, "_post_rotation", Mock(side_effect=answers))
    monkeypatch.setattr(actions, "time", Mock(monotonic=lambda: sum(slept), sleep=slept.append))
    actions._wait_for_renewals(Mock(), [Mock()] * 100, None)
    assert sum(slept) >= 300 / actions.PER_SECOND


def test_templates_find_and_print_values_as_kubectl_does() -> None:
    right = {**SAME, **KINDER}
    assert {template: rendered(parse_template(template), DOCUMENT) for template in right} == right
    assert as_json(parse_template("{.spec.list[*].name}"), DOCUMENT) == '[\n    "one",\n    "two"\n]\n'
    paths = ("metadata.name", ".metadata.name", "{metadata.name}", "{.metadata.name}")
    assert [find(parse_path(path), DOCUMENT) for path in paths] == [["thing"]] * 4
    numbers = {1.0: "1", 2.5: "2.5", 1e20: "1" + "0" * 20, 1e21: "1e+21", 1e-5: "1e-05", 0.0001: "0.0001", -0.5: "-0.5"}
    assert {number: rendered(parse_template("{.a}"), {"a": number}) for number in numbers} == numbers
    assert rendered(parse_template("{@}"), {"b": 1.0, "a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e","b":1}'


def test_wrong_templates_and_paths_are_refused_with_the_reason() -> None:
    for template, word in WRONG.items():
        refused = refusal(CommandError, lambda text: rendered(parse_template(text), DOCUMENT), template)
        assert refused is not None, template
        assert word in refused.sentence, template
        assert refused.code == (1 if refused.sentence.startswith("jsonpath:") else 2), template
    for path in ("{.a}{.b}", "", "{}"):
        check_refusal(CommandError, parse_path, path, match="is not a path")


def test_a_command_describes_itself_and_its_examples_can_be_typed() -> None:
    wrong = []
    for words, command in LEAVES:
        help_text = command.help or ""
        begins = words.removesuffix(" anything").split()
        described = re.match(r"[A-Z].*\.", help_text) and "\b\nExamples:\n" in help_text.replace("\b\n    ", "\b\n")
        if not described or not any(line[: len(begins)] == begins for line in typed(command)):
            wrong.append(words)
    assert wrong == []
    for _, command in ALL:
        for line in typed(command):
            found: click.Command = hubctl
            context = hubctl.make_context("hubctl", list(line))
            while isinstance(found, click.Group):
                _, below, arguments = found.resolve_command(context, [*context._protected_args, *context.args])
                assert below is not None, line
                found, context = below, below.make_context(below.name, list(arguments), parent=context)


def test_a_wrong_command_suggests_what_was_meant() -> None:
    assert 'did you mean "get"?' in here.hubctl("gte").err
    assert "use `hubctl certificate approve`" in here.hubctl("approve", "edge1").err
    assert here.hubctl("xyzzy").code == 2
    assert "Did you mean 'approve'" in here.hubctl("certificate", "aprove").err
    assert "'--output'" in here.hubctl("get", "--outptu").err
    assert not set(SYNONYMS) & set(COMMANDS)


def test_pages_say_what_help_says_and_drift_is_seen(tmp_path: Path) -> None:
    write(tmp_path)
    assert (drift(tmp_path), set(pages())) == ([], {"README.md", *(f"{name}.md" for name in COMMANDS)})
    (tmp_path / "get.md").write_text("other")
    (tmp_path / "gone.md").write_text("")
    assert drift(tmp_path) == ["get.md", "gone.md"]
    write(tmp_path)
    assert not (tmp_path / "gone.md").exists()
    assert all(f"| {code} | " in (tmp_path / "README.md").read_text() for code, _ in CODES)


def test_completion_offers_kinds_options_and_forms_or_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUBCTL_KUBECONFIG", "/nowhere")
    assert (offered(["get", "bootstrap"]), offered(["get", "clusters", ""])) == (["bootstrap-credentials", ":4"], [":4"])
    assert offered(["get", "clusters", "-o", "js"]) == ["json", "jsonpath=", "jsonpath-as-json=", "jsonpath-file=", ":4"]
    assert offered(["get", "clusters", "--where", "version.m"]) == ["version.minor", ":4"]
    assert offered(["get", "clusters", "--where", 'name == "a b" && !has(ag']) == [
        f'name == "a b" && !has({field}' for field in ("age", "agentVersion")
    ] + [":4"]
    assert offered(["get", "clusters", "--where", 'name == "cpu']) == [":4"]
    assert offered(["get", "clusters", "--sort-by", "version,-nam"]) == ["version,-name", ":4"]
    assert "--field-selector\tFields, as in 'status.available!=True'." in offered(["get", "--fie"])
    assert [line.partition("\t")[0] for line in offered(["certificate", ""])] == ["approve", "deny", ":4"]
    for words in (["accept", ""], ["get", "cluster/"], ["wait", "clusters", ""], ["--context", ""], ["get", "nothing", ""]):
        assert offered(words) == [":4"], words
    assert capfd.readouterr() == ("", "")
    for shell in ("bash", "zsh", "fish", "powershell"):
        answer = here.hubctl("completion", shell)
        assert (answer.code, "_HUBCTL_COMPLETE" in answer.out) == (0, True), shell
