"""The text that Prometheus reads, and the registry behind it. Its own client's parser says whether the text is right."""

import asyncio
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from machinery.metrics import Distribution, Registry, Tally, counter, gauge, histogram


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels, as Prometheus' own client reads them."""
    families = text_string_to_metric_families(text)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


def registry(**bound: object) -> Registry:
    made = Registry()
    for name, value in bound.items():
        made.bind(gauge(name, "A number."), lambda value=value: value)  # type: ignore[misc]
    return made


def test_numbers_are_read_back_as_they_were() -> None:
    told = registry(whole=3, large=2**53, part=0.1, endless=math.inf, below=-math.inf).text()
    read = samples(told)
    assert read["muster_whole", ()] == 3
    assert read["muster_large", ()] == 2**53
    assert read["muster_part", ()] == 0.1
    assert read["muster_endless", ()] == math.inf
    assert read["muster_below", ()] == -math.inf
    assert math.isnan(samples(registry(none=math.nan).text())["muster_none", ()])


def test_help_and_labels_may_hold_whatever_text_there_is() -> None:
    text = 'a "quoted"\\ text\nof two lines'
    made = Registry()
    made.bind(gauge("odd", text, "first", "second"), lambda: {(text, "b"): 1, ("", "{}=,"): 2})
    (family,) = text_string_to_metric_families(made.text())
    assert family.documentation == text
    assert [(each.labels, each.value) for each in family.samples] == [
        ({"first": text, "second": "b"}, 1),
        ({"first": "", "second": "{}=,"}, 2),
    ]


def test_types_are_told() -> None:
    made = Registry()
    made.bind(counter("grown_total", "Grows."), lambda: 1)
    made.bind(gauge("level", "Goes up and down."), lambda: 1)
    made.bind(histogram("spread", "Is distributed."), Distribution)
    types = {family.name: family.type for family in text_string_to_metric_families(made.text())}
    assert types == {"muster_grown": "counter", "muster_level": "gauge", "muster_spread": "histogram"}


def test_a_distribution_counts_a_value_in_every_bucket_that_it_fits() -> None:
    spread = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        spread.observe(value)
    made = Registry()
    made.bind(histogram("spread", "Is distributed.", "of"), lambda: {"this": spread})
    read = samples(made.text())
    buckets = {bound: read["muster_spread_bucket", (("le", bound), ("of", "this"))] for bound in ("0.1", "1.0", "+Inf")}
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert read["muster_spread_count", (("of", "this"),)] == 4
    assert read["muster_spread_sum", (("of", "this"),)] == pytest.approx(7.65)


def test_a_tally_has_a_series_for_what_happened_and_none_for_the_rest() -> None:
    tally = Tally()
    made = Registry()
    made.bind(counter("requests_total", "Requests.", "verb", "code"), lambda: tally)
    assert made.text() == ""
    tally["get", "200"] += 2
    assert samples(made.text()) == {("muster_requests_total", (("code", "200"), ("verb", "get"))): 2}


def test_what_is_not_known_has_no_series() -> None:
    assert registry(unknown=None).text() == ""


def test_labels_that_are_not_the_metrics_are_an_error_and_the_rest_is_told() -> None:
    made = registry(fine=1)
    made.bind(gauge("wrong", "Has one label.", "one"), lambda: {("a", "b"): 1})
    assert samples(made.text()) == {("muster_fine", ()): 1}


def test_a_part_that_cannot_be_read_takes_nothing_else_along_and_is_told_again_when_it_can() -> None:
    broken = True

    def read() -> int:
        if broken:
            raise RuntimeError("not now")
        return 5

    made = registry(fine=1)
    made.bind(gauge("broken", "Fails."), read)
    assert samples(made.text()) == {("muster_fine", ()): 1}
    broken = False
    assert samples(made.text())["muster_broken", ()] == 5


def test_a_name_stands_for_one_metric() -> None:
    made = registry(once=1)
    with pytest.raises(ValueError, match="muster_once"):
        made.bind(gauge("once", "Again."), lambda: 2)


def test_registries_share_nothing() -> None:
    assert registry(mine=1).text() != registry(yours=1).text()


@pytest.mark.parametrize("asked", [False, True])
def test_metrics_that_grow_with_the_fleet_are_told_only_where_that_is_asked_for(*, asked: bool) -> None:
    made = Registry(detailed=asked)
    made.bind(gauge("cluster", "One of each cluster.", "cluster", detailed=True), lambda: {"cluster1": 1})
    assert bool(made.text()) is asked
    assert bool(made.metrics) is asked


async def test_a_scrape_looks_everywhere_at_the_same_time_and_then_reads() -> None:
    seen = 0
    both = asyncio.Barrier(2)

    async def look() -> None:
        nonlocal seen
        await both.wait()
        seen += 1

    made = Registry()
    made.look(look)
    made.look(look)
    made.bind(gauge("seen", "Looks."), lambda: seen)
    assert samples(await made.scrape()) == {("muster_seen", ()): 2}
