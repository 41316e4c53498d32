"""JSONPath templates as in kubectl: text and expressions in braces, with filters, slices, unions and ranges.

The grammar is that of kubectl's `-o jsonpath`; tests compare the output with a real kubectl. There are three extensions. Maps
keep the order of the document, while kubectl's order is random. Integers can be compared with floats. A key in brackets may
contain dots without a backslash. A `{range}` without `{end}`, and a template without an expression, are refused.
"""

from hubctl.jsonpath.evaluation import Path, Template, as_json, find, rendered, text_of
from hubctl.jsonpath.parsing import parse_action, parse_path, parse_template

__all__ = ["Path", "Template", "as_json", "find", "parse_action", "parse_path", "parse_template", "rendered", "text_of"]
