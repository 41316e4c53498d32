"""The expression language of the project: conditions over declared fields, such as `version < 1.30 && memory > 64Gi`.

    region == "eu" && !(name.startsWith("test-"))      comparisons, && || !, parentheses
    name in ["a", "b"] || "admins" in requester.groups  membership in a list literal, a list field, or a map's keys
    labels["tier"] == "gold" && has(labels.owner)       entries of maps; has() tests for presence
    name.matches("edge-*-??")                           also startsWith, endsWith and contains; wildcards are * and ?
    name =~ "edge-[0-9]+", name !~ "test.*"             regular expressions of RE2 for the whole text
    age < 90m, version >= v1.29.3, nodes != 0           literals have the type of the other operand

`parse` checks a text against declared fields. The evaluation of its result never fails. **A missing value is unknown**, like
NULL in SQL: a comparison with it is neither true nor false, and the negation of this comparison is not true either. A condition
holds only if it is true. To accept missing values, write `!has(x) || x != "a"`.

The language has no arithmetic, no loops and no other functions. So each evaluation is short, and each expression can be
translated to SQL: the typed tree (`machinery.expression.tree`) is plain data, and each node corresponds to one SQL operator.
Regular expressions are the exception; for them a store first looks up the values that match.
"""

from machinery.expression.evaluation import Expression, parse
from machinery.expression.parsing import parse_operand
from machinery.expression.syntax import ExpressionError
from machinery.expression.types import Fields, KubernetesVersion, ListOf, MapOf, Type, parse_quantity, parse_version

__all__ = [
    "Expression",
    "ExpressionError",
    "Fields",
    "KubernetesVersion",
    "ListOf",
    "MapOf",
    "Type",
    "parse",
    "parse_operand",
    "parse_quantity",
    "parse_version",
]
