"""Alert rules and dashboards: what they ask for is told, each alert fires when it should and not else, and has a runbook."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

import hub.metrics as of_hub
import spoke.metrics as of_spoke
from machinery.metrics import Kind, Metric, described
from tests.fakes.prometheus import Prometheus, labels_in, names_in

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks"
MINUTES, MINUTE = 200, 60.0
OF_PROMETHEUS = {"instance", "job", "namespace", "pod"}
"""Labels that come with the target, not with the metric."""
SEVERITIES = {"critical", "warning", "info"}
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$instance": ".*", "$cluster": ".*"}
METRICS: Mapping[str, tuple[Metric, ...]] = {"hub": of_hub.METRICS, "spoke": of_spoke.METRICS}


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, and where it stands."""

    half: str
    place: str
    query: str


def rules(half: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((ROOT / "charts" / half / "rules" / f"{half}.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard(half: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "charts" / half / "dashboards" / f"{half}.json").read_text()))


def panels(half: str) -> list[dict[str, Any]]:
    return [each for each in dashboard(half)["panels"] if each["type"] != "row"]


def asked() -> Iterator[Asked]:
    for half in METRICS:
        yield from (Asked(half, rule["alert"], rule["expr"]) for rule in rules(half))
        for panel in panels(half):
            for target in panel["targets"]:
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                yield Asked(half, panel["title"], query)


ASKED = list(asked())
RULES = {rule["alert"]: rule for half in METRICS for rule in rules(half)}
CASES: dict[str, Any] = {
    name: case
    for half in METRICS
    for name, case in yaml.safe_load((ROOT / "tests" / "fixtures" / "rules" / f"{half}.yaml").read_text()).items()
}


@cache
def known(half: str) -> Mapping[str, Metric]:
    return {name: metric for metric in METRICS[half] for name in metric.series}


@pytest.mark.parametrize("each", ASKED, ids=[f"{each.half}: {each.place}" for each in ASKED])
def test_a_query_parses_and_asks_for_metrics_and_labels_that_are_told(each: Asked) -> None:
    found = names_in(each.query)
    assert found, "a query asks for something"
    told: set[str] = set(OF_PROMETHEUS)
    for name, matched in found:
        metric = known(each.half).get(name)
        assert metric is not None, f"{name} is not exported"
        labels = {*metric.labels, *OF_PROMETHEUS, *(("le",) if metric.kind is Kind.HISTOGRAM else ())}
        assert set(matched) <= labels, f"{name} has no label {set(matched) - labels}"
        told |= labels
    assert labels_in(each.query) <= told


@pytest.mark.parametrize("each", ASKED, ids=[f"{each.half}: {each.place}" for each in ASKED])
def test_what_only_grows_is_asked_for_its_rate_and_what_goes_up_and_down_is_not(each: Asked) -> None:
    for name, _ in names_in(each.query):
        grows = known(each.half)[name].kind is not Kind.GAUGE
        rated = re.search(rf"(rate|increase)\([^()]*{name}\b", each.query) is not None
        assert rated == grows, name


def parsed(series: str) -> tuple[str, dict[str, str]]:
    selector = promql_parser.parse(series)
    assert isinstance(selector, promql_parser.VectorSelector)
    assert selector.name is not None
    return selector.name, {each.name: each.value for each in selector.matchers.matchers}


def samples(text: str) -> list[tuple[float, float]]:
    found = re.fullmatch(r"(-?[\d.]+)(?:([+-])([\d.]+))?x", text)
    assert found is not None, text
    start, sign, step = float(found[1]), -1 if found[2] == "-" else 1, float(found[3] or 0)
    return [(minute * MINUTE, start + sign * step * minute) for minute in range(MINUTES + 1)]


def world(series: Mapping[str, str]) -> Prometheus:
    made = Prometheus()
    for each, text in series.items():
        name, labels = parsed(each)
        made.add(name, labels, samples(text))
    return made


@pytest.mark.parametrize("alert", sorted({*RULES, *CASES}))
def test_an_alert_fires_when_it_should_and_is_quiet_when_not(alert: str) -> None:
    rule, case, end = RULES[alert], CASES[alert], MINUTES * MINUTE
    for moment in ("fires", "quiet"):
        exported = {name: metric for half in METRICS for name, metric in known(half).items()}
        for each in case[moment]:
            name, labels = parsed(each)
            assert set(labels) <= {*exported[name].labels, *OF_PROMETHEUS, "le"}, each
    assert world(case["quiet"]).firing(rule, end) == []
    assert world(case["fires"]).firing(rule, end) == case.get("labels", [{}])


@pytest.mark.parametrize("alert", [name for name, rule in RULES.items() if "for" in rule])
def test_an_alert_waits_before_it_fires(alert: str) -> None:
    rule, troubled = RULES[alert], world(CASES[alert]["fires"])
    moments = (minute * MINUTE for minute in range(MINUTES + 1))
    first = next(moment for moment in moments if troubled.ask(rule["expr"], moment))
    assert troubled.firing(rule, first) == []


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_it_means_and_where_its_runbook_is(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    assert rule["labels"]["severity"] in SEVERITIES
    assert set(notes) == {"summary", "description", "runbook_url"}
    page = ROOT / notes["runbook_url"]
    assert page == RUNBOOKS / f"{rule['alert']}.md"
    text = page.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## What it means", "## What to do"]
    named = set(re.findall(r"\$labels\.(\w+)", f"{notes['summary']}{notes['description']}"))
    grouped = labels_in(rule["expr"]) | {
        label for name, _ in names_in(rule["expr"]) for label in OF_PROMETHEUS | {"sink", "hub"}
    }
    assert named <= grouped


def test_there_is_no_runbook_without_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("Muster*.md")} == set(RULES)
    index = (RUNBOOKS / "README.md").read_text()
    assert [name for name in RULES if f"({name}.md)" not in index] == []


@pytest.mark.parametrize("half", METRICS)
def test_a_dashboard_is_whole(half: str) -> None:
    found = dashboard(half)
    assert found["uid"] == f"muster-{half}"
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    for panel in panels(half):
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    taken = [(panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y) for panel in found["panels"] for x, y in _cells(panel)]
    assert len(set(taken)) == len(taken), "panels lie on one another"


def _cells(panel: dict[str, Any]) -> Iterator[tuple[int, int]]:
    for x in range(panel["gridPos"]["w"]):
        yield from ((x, y) for y in range(panel["gridPos"]["h"]))


@pytest.mark.parametrize("half", METRICS)
def test_no_label_takes_the_names_of_clusters_unless_an_option_asks_for_it(half: str) -> None:
    for metric in METRICS[half]:
        assert metric.detailed == ("cluster" in metric.labels), metric.name
        assert not {"agent", "user", "name", "path", "namespace", "serial"} & set(metric.labels), metric.name


@pytest.mark.parametrize("half", METRICS)
def test_names_follow_the_custom(half: str) -> None:
    for metric in METRICS[half]:
        assert re.fullmatch(rf"(muster_{half}|process|python)_[a-z0-9_]+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        assert metric.help.endswith("."), metric.name


def test_the_reference_page_says_what_the_code_says() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    parts = (
        [metric for metric in of_hub.METRICS if not metric.detailed],
        [metric for metric in of_hub.METRICS if metric.detailed],
        of_spoke.METRICS,
    )
    for part in parts:
        assert described(part) in page, f"docs/reference/metrics.md should have this table:\n{described(part)}"
