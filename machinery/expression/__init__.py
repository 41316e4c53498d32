"""The one expression language of the project: conditions over declared fields, as in `version < 1.30 && memory > 64Gi`.

    region == "eu" && !(name.startsWith("test-"))      comparisons, && || !, parentheses
    name in ["a", "b"] || "admins" in requester.groups  membership in a list, in a field that is a list, among a map's keys
    labels["tier"] == "gold" && has(labels.owner)       entries of maps; has() asks whether something is there
    name.matches("edge-*-??")                           also startsWith, endsWith and contains; only * and ? are wild
    age < 90m, version >= v1.29.3, nodes != 0           literals take the type of what they are compared with

`parse` checks a text against declared fields; what it returns never fails. **What is missing is unknown**: a comparison with it
is neither true nor false, and neither is its negation, as NULL in SQL. A condition holds only when it is true; whoever means
otherwise says `!has(x) || x != "a"`.

The language has no arithmetic, no loops and no calls but those above, so that every expression ends soon and can be put into
SQL: the typed tree (`machinery.expression.tree`) is plain data, and the meaning of every node is that of one SQL operator.
"""

from machinery.expression.checking import ExpressionError, Fields
from machinery.expression.evaluation import Expression, parse, parse_operand
from machinery.expression.types import ListOf, MapOf, Type
from machinery.expression.values import KubernetesVersion, parse_quantity, parse_version

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
