"""Checks that tests share: tables of cases, of which every row that fails is reported, and values that must exist."""

import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
Kinds: TypeAlias = type[E] | tuple[type[E], ...]

PYTHON = re.compile(
    r"<class|datetime\.|timedelta|Traceback| object at 0x|pydantic|\[type=|\b(tuple|dict|None|True|False|NoneType|PosixPath)\b"
    r"|Errno|[a-z]Error\b|Input should|parse string as|codec|int\(\)|sys\.|(?<!['\w])b'"
)  # what Python and its libraries write of values, and no text for users has
CASE_FILES = Path(__file__).parent / "golden" / "cases"
"""Tables of cases that are data."""
WRONG_TEXTS = ("nonsense", "-1", "1e999", "9" * 5000, "1:30", "\u00b2", "{[", "a=b=c,", "a b", "None")


def check_each(check: Callable[..., object], rows: Iterable[tuple[Any, ...]]) -> None:
    """Call `check` with the values of each row; it raises for a row that is wrong."""
    wrong = []
    for row in rows:
        try:
            check(*row)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported with its row
            wrong.append(f"{row!r}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


def check_results(function: Callable[..., object], rows: Iterable[tuple[Any, ...]]) -> None:
    """The last value of a row is what `function` returns for the others."""
    found = [(row, function(*row[:-1])) for row in rows]
    wrong = [f"{row!r}: returned {result!r}" for row, result in found if result != row[-1]]
    assert not wrong, "\n".join(wrong)


def check_refusal(kind: Kinds[E], call: Callable[..., object], /, *args: Any, match: str = "", **named: Any) -> None:
    """The call raises an error of this kind with this pattern in it."""
    error = refusal(kind, call, *args, **named)
    assert error is not None, f"{call} raises no {kind}"
    assert re.search(match, str(error)), f"the error is {error!r}"


async def check_refusal_of(kind: Kinds[Exception], answer: Awaitable[object], *, match: str = "") -> None:
    """The same of something awaited."""
    error = await awaited_refusal(kind, answer)
    assert error is not None, f"{answer} raises no {kind}"
    assert re.search(match, str(error)), f"the error is {error!r}"


def check_refusals(kind: type[Exception], function: Callable[..., object], rows: Iterable[tuple[Any, ...]]) -> None:
    """The last value of a row is a pattern in the error of this kind that `function` raises for the others."""
    check_each(lambda *row: check_refusal(kind, function, *row[:-1], match=row[-1]), rows)


def present(value: T | None) -> T:
    """The value, which must not be None."""
    assert value is not None
    return value


def refusal(kind: Kinds[E], call: Callable[..., object], /, *args: Any, **named: Any) -> E | None:
    """The error of this kind that the call raises; None if it succeeds."""
    try:
        call(*args, **named)
    except kind as error:
        return error
    return None


async def awaited_refusal(kind: Kinds[E], answer: Awaitable[object]) -> E | None:
    """The same of something awaited."""
    try:
        await answer
    except kind as error:
        return error
    return None


def refusal_text(call: Callable[..., object], *args: Any, **named: Any) -> str:
    """Type and text of the error that the call raises; "" if it succeeds."""
    error = refusal(Exception, call, *args, **named)
    return f"{type(error).__name__}: {error}" if error is not None else ""


def within_steps(most: int, call: Callable[[], T]) -> T:
    """What the call returns. It fails as soon as the call has executed more lines of Python than that."""
    left = most

    def trace(_frame: FrameType, event: str, _arg: object) -> Callable[..., Any]:
        nonlocal left
        left -= event == "line"
        assert left > 0, f"more than {most} steps"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)
