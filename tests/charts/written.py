"""What is generated of the charts: the table in each README, and the program's settings in its schema.

`python -m tests.charts` writes them; a test says when that was forgotten.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.charts.settings_schema import settings_schema
from tests.charts.values_table import table

CHARTS = Path(__file__).parents[2] / "charts"
BEGIN, END = "<!-- values: begin, written by `make charts` -->\n", "<!-- values: end -->\n"


def generated() -> Iterator[tuple[Path, str]]:
    """Files, each as it ought to be."""
    for chart in ("hub", "spoke"):
        readme = CHARTS / chart / "README.md"
        head, _, rest = readme.read_text().partition(BEGIN)
        _, _, tail = rest.partition(END)
        yield readme, head + BEGIN + table((CHARTS / chart / "values.yaml").read_text()) + END + tail
        path = CHARTS / chart / "values.schema.json"
        schema = json.loads(path.read_text())
        schema["properties"]["settings"] = settings_schema(chart)
        yield path, json.dumps(schema, indent=2) + "\n"


def write() -> None:
    for path, content in generated():
        path.write_text(content)
