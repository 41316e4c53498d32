"""Alert rules and dashboards: their queries, when each alert fires and when not, runbooks, and the metrics they use."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import promql_parser
import yaml

from docs.reference_pages import METRICS, ROOT, MonitoringQuery, monitoring_queries, rules
from hub.metrics.fleet import CRITICAL
from machinery.observability.metrics import Metric, MetricKind
from tests.fakes.prometheus import Prometheus, labels_in, names_in

RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks"
MINUTES, MINUTE = 200, 60.0
OF_PROMETHEUS = {"instance", "job", "namespace", "pod", "hub"}
"""Labels that come with the target, not with the metric. The chart's ServiceMonitor sets `hub`."""


ASKED = [each for half in METRICS for each in monitoring_queries(half)]
RULES = {rule["alert"]: rule for half in METRICS for rule in rules(half)}
CASES: dict[str, Any] = {
    name: case
    for half in METRICS
    for name, case in yaml.safe_load((ROOT / "tests" / "fixtures" / "rules" / f"{half}.yaml").read_text()).items()
}


@cache
def known(half: str) -> Mapping[str, Metric]:
    return {name: metric for metric in METRICS[half] for name in metric.series}


def flaws_of_query(each: MonitoringQuery) -> Iterator[str]:
    found, allowed = names_in(each.query), set(OF_PROMETHEUS)
    if not found:
        yield "no metric"
    for name, matched in found:
        metric = known(each.half).get(name)
        if metric is None:
            yield f"{name} is not exported"
            continue
        labels = {*metric.labels, *OF_PROMETHEUS, *(("le",) if metric.kind is MetricKind.HISTOGRAM else ())}
        allowed |= labels
        if not set(matched) <= labels:
            yield f"{name} has no label {set(matched) - labels}"
        is_rated = re.search(rf"(rate|increase)\([^()]*{name}\b", each.query) is not None
        if is_rated != (metric.kind is not MetricKind.GAUGE):
            yield f"{name}: rates are for what only grows"
    if not labels_in(each.query) <= allowed:
        yield f"labels {labels_in(each.query) - allowed}"


def test_queries_of_alerts_and_dashboards_fit_the_metrics() -> None:
    flaws = [f"{each.half}: {each.place}: {flaw}" for each in ASKED for flaw in flaws_of_query(each)]
    flaws += [f"{each.place} does not group by hub" for each in ASKED if each.half == "hub" and merges_hubs(each.query)]
    assert not flaws, "\n".join(flaws)


def merges_hubs(query: str) -> bool:
    """Whether it adds up the series of several hubs."""
    return re.search(r"\b(sum|max|min|count|avg)\b(?! by \(namespace, hub\b)", query) is not None


def parsed(series: str) -> tuple[str, dict[str, str]]:
    selector = promql_parser.parse(series)
    assert isinstance(selector, promql_parser.VectorSelector)
    assert selector.name is not None
    return selector.name, {each.name: each.value for each in selector.matchers.matchers}


def samples(text: str) -> list[tuple[float, float]]:
    found = re.fullmatch(r"(-?[\d.]+)(?:([+-])([\d.]+))?x(\d*)", text)
    assert found is not None, text
    start, sign, step = float(found[1]), -1 if found[2] == "-" else 1, float(found[3] or 0)
    return [(minute * MINUTE, start + sign * step * minute) for minute in range(int(found[4] or MINUTES) + 1)]


def world(series: Mapping[str, str]) -> Prometheus:
    made = Prometheus()
    for each, text in series.items():
        name, labels = parsed(each)
        made.add(name, labels, samples(text))
    return made


def flaws_of_alert(rule: Mapping[str, Any], case: Mapping[str, Any]) -> Iterator[str]:
    end, exported = MINUTES * MINUTE, {name: metric for half in METRICS for name, metric in known(half).items()}
    for series in (*case["fires"], *case["quiet"]):
        name, labels = parsed(series)
        if not set(labels) <= {*exported[name].labels, *OF_PROMETHEUS, "le"}:
            yield f"{series}: unknown labels"
    if firing := world(case["quiet"]).firing(rule, end):
        yield f"it should be quiet: {firing}"
    log_failure = world(case["fires"])
    if (firing := log_failure.firing(rule, end)) != case.get("labels", [{}]):
        yield f"it should fire: {firing}"
        return
    moments = (minute * MINUTE for minute in range(MINUTES + 1))
    first = next(moment for moment in moments if log_failure.ask(rule["expr"], moment))
    if "for" in rule and log_failure.firing(rule, first):
        yield "it does not wait"


def beside_another_hub(name: str, case: Mapping[str, Any]) -> Iterator[str]:
    """What fires for one hub fires while another one in the same Prometheus is well, and only for the first."""

    def of(hub: str, series: Mapping[str, str]) -> dict[str, str]:
        named = ((each.rstrip("}"), text) for each, text in series.items())
        return {f'{each}{"," if "{" in each else "{"}hub="{hub}"}}': text for each, text in named}

    for well in case["quiet"], case["fires"]:
        firing = world({**of("ill", case["fires"]), **of("well", well)}).firing(RULES[name], MINUTES * MINUTE)
        if {each["hub"] for each in firing if each} != ({"ill"} if well is case["quiet"] else {"ill", "well"}):
            yield f"two hubs: {firing}"


def test_each_alert_fires_after_its_delay_when_it_should_and_is_quiet_when_not() -> None:
    assert set(CASES) == set(RULES)
    flaws = [f"{name}: {flaw}" for name, rule in RULES.items() for flaw in flaws_of_alert(rule, CASES[name])]
    of_hubs = [name for name in RULES if name.startswith("MusterHub")]
    flaws += [f"{name}: {flaw}" for name in of_hubs for flaw in beside_another_hub(name, CASES[name])]
    assert not flaws, "\n".join(flaws)


def flaws_of_texts(name: str, rule: Mapping[str, Any]) -> Iterator[str]:
    notes, page = rule["annotations"], RUNBOOKS / f"{name}.md"
    if rule["labels"]["severity"] not in {"critical", "warning", "info"}:
        yield "no severity"
    if set(notes) != {"summary", "description", "runbook_url"} or ROOT / notes["runbook_url"] != page:
        yield "annotations"
    lines = page.read_text().splitlines()
    if lines[0] != f"# {name}" or [line for line in lines if line.startswith("## ")] != ["## Meaning", "## Steps"]:
        yield "headings of the runbook"
    used = set(re.findall(r"\$labels\.(\w+)", f"{notes['summary']}{notes['description']}"))
    if not used <= labels_in(rule["expr"]) | OF_PROMETHEUS | {"sink", "hub"}:
        yield f"labels {used} in its texts"


def test_each_alert_has_a_severity_texts_and_a_runbook() -> None:
    assert {page.stem for page in RUNBOOKS.glob("Muster*.md")} == set(RULES)
    flaws = [f"{name}: {flaw}" for name, rule in RULES.items() for flaw in flaws_of_texts(name, rule)]
    assert not flaws, "\n".join(flaws)
    index = (RUNBOOKS / "README.md").read_text()
    assert [name for name in RULES if f"({name}.md)" not in index] == []


def flaws_of_metric(half: str, metric: Metric) -> Iterator[str]:
    if metric.detailed != ("cluster" in metric.labels) and metric is not CRITICAL:
        yield "names of clusters are labels of optional metrics, and of those that an operator chose"
    if {"agent", "user", "name", "path", "namespace", "serial"} & set(metric.labels):
        yield "a label without a bound"
    if not re.fullmatch(rf"(muster_{half}|process|python)_[a-z0-9_]+", metric.name):
        yield "prefix"
    if metric.name.endswith("_total") != (metric.kind is MetricKind.COUNTER):
        yield "counters end in _total"
    if not metric.help.endswith("."):
        yield "help"


def test_names_and_labels_of_metrics_follow_the_conventions() -> None:
    described_by = [(half, metric) for half, metrics in METRICS.items() for metric in metrics]
    flaws = [f"{metric.name}: {flaw}" for half, metric in described_by for flaw in flaws_of_metric(half, metric)]
    assert not flaws, "\n".join(flaws)
