"""Texts that sort as the values do, and are equal when they are."""

from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machinery.expression import parse_quantity, parse_version
from machinery.expression.sorting import sort_key

parts = st.sampled_from(["alpha", "alpha.1", "alpha.2", "alpha.10", "alpha.beta", "beta", "rc", "rc.1", "rc-1", "rc.0.x"])
versions = st.builds(
    lambda major, minor, patch, early: parse_version(f"v{major}.{minor}.{patch}{'-' + early if early else ''}"),
    st.integers(0, 120),
    st.integers(0, 12),
    st.integers(0, 10**12),
    st.one_of(st.none(), parts),
)
quantities = st.builds(
    lambda sign, number, unit: parse_quantity(f"{sign}{number}{unit}"),
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 5000).map(str), st.sampled_from(["0.5", "1.25", "1.255", "999.999", "0.001", "1000000000"])),
    st.sampled_from(["", "n", "u", "m", "k", "Ki", "Mi", "Gi", "G", "E", "Ei", "e3", "e-9", "e60"]),
)
durations = st.timedeltas(timedelta(days=-1000), timedelta(days=10000))


@pytest.mark.parametrize("values", [versions, quantities, durations], ids=["versions", "quantities", "durations"])
def test_texts_sort_as_the_values_do(values: st.SearchStrategy[Any]) -> None:
    @given(values, values)
    def compared(first: Any, second: Any) -> None:
        one, other = sort_key(first), sort_key(second)
        assert (one < other, one == other) == (first < second, first == second)
        assert one.isascii(), "bytes and characters sort alike"

    compared()


def test_some_that_are_easily_confused() -> None:
    numbers = ["-10", "-9", "-1.55", "-1.5", "-0.5", "0", "0.009", "0.01", "0.5", "1", "1.5", "9", "10", "64Gi", "65Gi", "1Ei"]
    keys = [sort_key(parse_quantity(number)) for number in numbers]
    assert all(low < high for low, high in pairwise(keys))
    names = ["1.9", "1.29.3", "1.30.0-alpha.9", "1.30.0-alpha.10", "1.30.0-alpha.beta", "1.30.0-rc", "1.30", "1.30.1", "1.100"]
    assert all(low < high for low, high in pairwise(sort_key(parse_version(name)) for name in names))
    assert sort_key(parse_version("1.30")) == sort_key(parse_version("v1.30.0-gke.7"))


@pytest.mark.parametrize("value", ["text", True, Fraction(1, 3)])
def test_what_has_no_order_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"has no"):
        sort_key(value)
