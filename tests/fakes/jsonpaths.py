"""Templates, a document, and what kubectl and hubctl print of it."""

from pathlib import Path
from typing import Any

import yaml

_TABLES: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "golden" / "jsonpaths.yaml").read_text())
DOCUMENT: dict[str, Any] = _TABLES["document"]
SAME, IN_NO_ORDER, KINDER, WRONG = (_TABLES[name] for name in ("same", "in_no_order", "kinder", "wrong"))
