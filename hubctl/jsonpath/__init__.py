"""JSONPath templates as in kubectl: text and expressions in braces, with filters, slices, unions and ranges.

The grammar is that of kubectl's `-o jsonpath`; tests compare the output with a real kubectl. Three extensions: maps keep the
order of the document (kubectl's order is random), integers and floats can be compared, and a key in brackets may contain dots
without a backslash. A `{range}` without `{end}`, and a template without any expression, are refused.
"""

from hubctl.jsonpath.evaluation import Path, Template, as_json, find, rendered, text_of
from hubctl.jsonpath.parsing import parse_action, parse_path, parse_template

__all__ = ["Path", "Template", "as_json", "find", "parse_action", "parse_path", "parse_template", "rendered", "text_of"]
