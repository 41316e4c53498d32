"""JSONPath as kubectl has it: templates of text and expressions in braces, with filters, slices, unions and ranges.

The grammar is that of kubectl's `-o jsonpath`; what it prints is compared with a real kubectl. Three things are kinder here:
maps are walked in the order of the document (kubectl's order is by chance), whole and broken numbers can be compared, and a key
in brackets may hold dots without a backslash. A `{range}` without `{end}`, and a template without any expression, are refused.
"""

from hubctl.jsonpath.evaluation import results
from hubctl.jsonpath.parsing import parse_path, parse_template
from hubctl.jsonpath.rendering import as_json, rendered, text_of
from hubctl.jsonpath.tree import Path, Template

__all__ = ["Path", "Template", "as_json", "parse_path", "parse_template", "rendered", "results", "text_of"]
