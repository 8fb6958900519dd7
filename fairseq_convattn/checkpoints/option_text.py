"""Options that are text: fairseq evaluates many as Python, and resolves ``${...}`` in all."""

import ast
import builtins
import math
import warnings
from collections.abc import Iterator
from typing import Any

# Whatever can run code or take unbounded time or memory when it is evaluated as Python.
_ACTIVE = (
    *(ast.Call, ast.Await, ast.Lambda, ast.NamedExpr, ast.FormattedValue, ast.Starred),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom),
    *(ast.Pow, ast.LShift, ast.Mod),
)
_PLAIN = (
    *(ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context),
)
_MOST_CHARACTERS = 10_000_000
_LONGEST = 1_000_000


def evaluated(text: str, *scopes: Any) -> Any:
    """Python's ``eval``, of numbers, texts, containers of them and their sums and products alone.

    Names are not looked up, whatever ``scopes`` has: even an attribute of a module can load a
    library, such as ``ctypes.cdll.name``.

    Raises:
        TypeError: it is no text.
        SyntaxError: it is not Python.
        MemoryError, RecursionError: it is too long or too deep.
        ArithmeticError: it divides by zero, or a number is too large.
        ValueError: it is anything else, or would be too long.
    """
    if not isinstance(text, str):
        raise TypeError("only text can be evaluated")
    tree = _parsed(text)
    if is_active(text) or not all(isinstance(node, _PLAIN) for node in ast.walk(tree)):
        raise ValueError(
            f"{text[:80]!r}: fairseq may evaluate only numbers, texts, lists of them, sums and "
            "short products with a number"
        )
    return builtins.eval(compile(tree, "<option>", "eval"))


def is_active(text: str) -> bool:
    """Whether evaluating a text as Python would call something, or need unbounded memory or time:
    a sum copies its operands."""
    try:
        nodes = list(ast.walk(_parsed(text)))
    except (SyntaxError, ValueError):
        return False
    except (MemoryError, RecursionError):
        return True
    repeats = math.prod(map(_factor, nodes))  # such as [(512, 3)] * 20 in fairseq's own models
    copies = 1 + sum(isinstance(node, ast.Add) for node in nodes)
    too_long = len(text) * repeats * copies > _MOST_CHARACTERS
    return too_long or any(isinstance(x, _ACTIVE) for x in nodes)


def texts_of(text: str) -> Iterator[str]:
    """A text, and those that it has in quotation marks if it is Python, without their escapes."""
    yield text
    try:
        nodes = list(ast.walk(_parsed(text)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return
    yield from (x.value for x in nodes if isinstance(x, ast.Constant) and isinstance(x.value, str))


def _parsed(text: str) -> ast.Expression:
    """The syntax of a text.

    Raises:
        MemoryError: it is too long.
    """
    if len(text) > _LONGEST:
        raise MemoryError("too long for an option")
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(text.lstrip(" \t"), mode="eval")  # eval strips leading blanks, too


def _factor(node: ast.AST) -> float:
    """How many times a product repeats its operand; 1 if it is none, or a number."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return 1
    values = [_number(side) for side in (node.left, node.right)]
    if None not in values:
        return 1
    found = [float(min(x, _MOST_CHARACTERS + 1)) for x in values if type(x) is int]
    return max(1.0, *found) if found else math.inf


def _number(node: ast.AST) -> int | float | None:
    """A number that stands in the text, without its sign."""
    signed = isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd))
    value = getattr(node.operand if signed else node, "value", None)
    return value if type(value) in (int, float) else None
