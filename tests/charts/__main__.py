"""Writes what is generated of the charts."""

from tests.charts.written import write

write()
