"""Whatever is written, an expression is refused with a column or means the same in Python and in SQL."""

import sqlite3
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from machinery.expression import ExpressionError, Fields, MapOf, Type, parse, tree

FIELDS = Fields({"name": Type.TEXT, "nodes": Type.NUMBER, "accepted": Type.BOOLEAN, "labels": MapOf(Type.TEXT)})
COLUMNS = ("name", "nodes", "accepted", "labels_tier")

words = st.sampled_from(["a", "ab", "edge-1", "edge-22", "A", "a*b", "50%", "a_b"])
literals = words.map(lambda word: f'"{word}"')
patterns = st.sampled_from(["*", "a*", "*b", "edge-?", "edge-*2", "a\\\\*b", "50%", "a_b", "?", ""])
atoms = st.one_of(
    st.builds("name {} {}".format, st.sampled_from(["==", "!="]), literals),
    st.builds("labels.tier {} {}".format, st.sampled_from(["==", "!="]), literals),
    st.builds("nodes {} {}".format, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), st.integers(-2, 5)),
    st.builds("name in [{}, {}]".format, literals, literals),
    st.builds('labels["tier"].{}({})'.format, st.sampled_from(["startsWith", "endsWith", "contains"]), literals),
    st.builds('name.matches("{}")'.format, patterns),
    st.sampled_from(["accepted", "has(name)", "has(labels.tier)", "true", "false", '"tier" in labels']),
)
conditions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("({} && {})".format, inner, inner), st.builds("({} || {})".format, inner, inner), inner.map("!({})".format)
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "name": words,
        "nodes": st.integers(-2, 5),
        "accepted": st.booleans(),
        "labels": st.one_of(st.just({}), words.map(lambda word: {"tier": word})),
    },
)


class _Sql:
    """A compiler of the typed tree for one table, with literals as parameters."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []

    def condition(self, node: tree.Condition) -> str:  # noqa: PLR0911 - one per node
        match node:
            case tree.All(operands):
                return f"({' AND '.join(map(self.condition, operands))})"
            case tree.Any(operands):
                return f"({' OR '.join(map(self.condition, operands))})"
            case tree.Not(operand):
                return f"(NOT {self.condition(operand)})"
            case tree.Has(what):
                return f"({self.column(what.name)} IS NOT NULL)"
            case tree.Truth(operand):
                return self.operand(operand)
            case tree.Compare(operator, left, right):
                return f"({self.operand(left)} {operator} {self.operand(right)})"
            case tree.OneOf(operand, values):
                return f"({self.operand(operand)} IN ({', '.join(self.bound(value) for value in values)}))"
            case tree.In(operand, whole):
                return f"(CASE WHEN has_labels THEN {self.column(whole.name)} IS NOT NULL END)" if operand else ""
            case tree.Match(function, operand, argument):
                return f"({self.operand(operand)} LIKE {self.bound(_like(function, argument))} ESCAPE '!')"

    def operand(self, operand: tree.Operand) -> str:
        return self.bound(operand.value) if isinstance(operand, tree.Value) else self.column(operand.name)

    def column(self, name: str) -> str:
        return "labels_tier" if name == "labels" else name

    def bound(self, value: Any) -> str:
        self.parameters.append(int(value) if isinstance(value, bool | Fraction) else value)
        return "?"


def _like(function: str, argument: str) -> str:
    if function != "matches":
        text = "".join(f"!{one}" if one in "%_!" else one for one in argument)
        return f"{'' if function == 'startsWith' else '%'}{text}{'' if function == 'endsWith' else '%'}"
    parts, escaped = [], False
    for one in argument:
        if one == "\\" and not escaped:
            escaped = True
            continue
        wild = {"*": "%", "?": "_"} if not escaped else {}
        parts.append(wild.get(one, f"!{one}" if one in "%_!" else one))
        escaped = False
    return "".join(parts)


@given(conditions, rows)
def test_python_and_sql_say_the_same_of_every_row(text: str, row: dict[str, Any]) -> None:
    expression = parse(text, FIELDS)
    sql = _Sql()
    where = sql.condition(expression.tree)
    with sqlite3.connect(":memory:") as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        cells = [row.get("name"), row.get("nodes"), row.get("accepted"), row.get("labels", {}).get("tier"), "labels" in row]
        selected = "SELECT ? AS name, ? AS nodes, ? AS accepted, ? AS labels_tier, ? AS has_labels"
        (found,) = database.execute(f"SELECT {where} FROM ({selected})", (*sql.parameters, *cells)).fetchone()  # noqa: S608
    assert expression.evaluate(row) is (None if found is None else bool(found)), text


@given(st.text(max_size=60) | st.text(alphabet="ab nodesname.()[]\"'!&|<>=1.,-in\\", max_size=60), rows)
def test_any_text_is_refused_with_a_column_inside_it_or_evaluates(text: str, row: dict[str, Any]) -> None:
    refusal = None
    try:
        expression = parse(text, FIELDS)
    except ExpressionError as error:
        refusal = error
    if refusal is None:
        assert expression.evaluate(row) in (True, False, None)
    else:
        assert 1 <= refusal.column <= len(text) + 1


@given(conditions, rows)
def test_what_holds_is_never_denied_too(text: str, row: dict[str, Any]) -> None:
    assert not (parse(text, FIELDS).holds(row) and parse(f"!({text})", FIELDS).holds(row))
