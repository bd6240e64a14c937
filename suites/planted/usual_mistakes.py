"""Mistakes of low precision that people make, as changes of any network's text. Each is a function that says where in a syntax tree it can be made.

`MISTAKES` has them by name. Nobody chooses the places: `mutations.py` draws them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

Held = Callable[[ast.AST], str]
"""The text of a node."""


class Place(NamedTuple):
    """A node that is replaced by a text."""

    node: ast.AST
    new: str
    wide: bool = False  # only where its value is float32
    lines: range | None = None  # those at fault; None: all of the node


LEAST_EPS = "1e-12"
"""What an eps becomes. Beside numbers of about one no format of this suite holds it, and float16 stores it as zero."""
LARGEST_EPS = 1e-3
LOGITS = frozenset(
    {"binary_cross_entropy_with_logits", "cosine_similarity", "cross_entropy", "kl_div", "mse_loss", "nll_loss", "normalize", "softplus"}
)
READING = frozenset({
    "cos", "cumprod", "cumsum", "exp", "log", "log_softmax", "logsumexp", "mean", "norm", "pow", "prod", "rsqrt", "sigmoid", "sin", "softmax", "sqrt",
    "square", "std", "sum", "var",
})  # fmt: skip
"""Functions and methods that read a value which may be cast low."""
NAMESPACES = ("torch", "F", "functional")


def of_torch(call: ast.AST, *names: str) -> bool:
    """Whether it calls one of these functions of torch or of torch.nn.functional."""
    named = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    return named and call.func.value.id in NAMESPACES and call.func.attr in names  # type: ignore[attr-defined]


def method(call: ast.AST, *names: str) -> ast.expr | None:
    """What a method of one of these names is called on."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in names:
        return None if isinstance(call.func.value, ast.Name) and call.func.value.id in NAMESPACES else call.func.value
    return None


def widened(node: ast.AST) -> ast.expr | None:
    """What is made float32 by `.float()` or `.to(torch.float32)`."""
    inner = method(node, "float", "to")
    if inner is None or not isinstance(node, ast.Call):
        return None
    asked = [*node.args, *(each.value for each in node.keywords)]
    if node.func.attr == "float":  # type: ignore[attr-defined]
        return None if asked else inner
    return inner if len(asked) == 1 and getattr(asked[0], "attr", "") == "float32" else None


def cast(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """What is assigned or returned is cast."""
    named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not isinstance(node.value, ast.Name)
    if named or (isinstance(node, (ast.AugAssign, ast.Return)) and node.value is not None and not isinstance(node.value, (ast.Tuple, ast.Constant))):
        yield Place(node.value, f"({held(node.value)}).to({low})", wide=True)  # type: ignore[attr-defined]


def read(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A method reads what is cast."""
    if (inner := method(node, *READING)) is not None:
        yield Place(inner, f"({held(inner)}).to({low})", wide=True)


def upcast(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A `.float()` or `.to(torch.float32)` is left out."""
    if (inner := widened(node)) is not None:
        yield Place(node, f"({held(inner)})")


def autocast(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """`autocast(enabled=False)` is left on."""
    if isinstance(node, ast.keyword) and node.arg == "enabled" and getattr(node.value, "value", None) is False:
        yield Place(node.value, "True")


def factory(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """What is asked for float32 is asked for the low format."""
    if isinstance(node, ast.keyword) and node.arg == "dtype" and getattr(node.value, "attr", "") in ("float32", "float64"):
        yield Place(node.value, low)


def _rest(call: ast.Call, held: Held, begin: int) -> str:
    return ", ".join([*(held(each) for each in call.args[begin:]), *(f"{each.arg}={held(each.value)}" for each in call.keywords)])


def _whole(node: ast.AST, held: Held, *names: str) -> tuple[str, str] | None:
    """The operand of a function or method, and the other arguments, as text."""
    inner = method(node, *names)
    if inner is not None and isinstance(node, ast.Call):
        return held(inner), _rest(node, held, 0)
    if of_torch(node, *names) and isinstance(node, ast.Call) and node.args:
        return held(node.args[0]), _rest(node, held, 1)
    return None


def logsumexp(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """log(sum(exp(x))), in the format of x."""
    if found := _whole(node, held, "logsumexp"):
        yield Place(node, f"({found[0]}).exp().sum({found[1]}).log()")
        yield Place(node, f"({found[0]}).to({low}).exp().sum({found[1]}).log()", wide=True)


def log_softmax(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    if found := _whole(node, held, "log_softmax"):
        yield Place(node, f"({found[0]}).softmax({found[1]}).log()")
        yield Place(node, f"({found[0]}).softmax({found[1]}).to({low}).log()", wide=True)


def argument(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A function of torch is given low numbers."""
    if isinstance(node, ast.Call) and of_torch(node, *READING, *LOGITS) and node.args and not isinstance(node.args[0], ast.Starred):
        yield Place(node.args[0], f"({held(node.args[0])}).to({low})", wide=True)


def eps(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A small constant is lost, or so small that the format does not hold it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _small(node.right):
        yield Place(node, f"({held(node.left)})")
    if _small(node):
        yield Place(node, LEAST_EPS)


def _small(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value <= LARGEST_EPS


def order(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A difference is taken before its cast to float32, or after a cast to the low format."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)):
        return
    left, right = widened(node.left), widened(node.right)
    if left is not None or right is not None:
        yield Place(node, f"({held(left or node.left)} - ({held(right or node.right)})).float()")
    yield Place(node, f"({low_of(node.left, held, low)} - {low_of(node.right, held, low)})", wide=True)


def ratio(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A quotient of low numbers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield Place(node, f"({low_of(node.left, held, low)} / {low_of(node.right, held, low)})", wide=True)


def low_of(node: ast.expr, held: Held, low: str) -> str:
    """A number that is no tensor stays."""
    return held(node) if isinstance(node, ast.Constant) or held(node).isupper() else f"({held(node)}).to({low})"


def arange(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """Positions or a grid in the low format."""
    if of_torch(node, "arange", "linspace"):
        yield Place(node, f"{held(node)}.to({low})")


def variance(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """E[x²] - E[x]²."""
    if isinstance(node, ast.Call) and (found := _whole(node, held, "var", "std")):
        rest = ", ".join(each for each in found[1].split(", ") if not each.startswith(("unbiased", "correction")))
        for of in (f"({found[0]})", f"({found[0]}).to({low})"):
            text = f"({of}.square().mean({rest}) - {of}.mean({rest}).square())"
            yield Place(node, text + (".clamp_min(0).sqrt()" if node.func.attr == "std" else ""))  # type: ignore[attr-defined]


def accumulate(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """A sum over turns of a loop is kept in the low format."""
    if not isinstance(node, (ast.For, ast.While)):
        return
    for each in ast.walk(node):
        if isinstance(each, ast.AugAssign) and isinstance(each.op, (ast.Add, ast.Sub)):
            sign = "+" if isinstance(each.op, ast.Add) else "-"
            yield Place(each, f"{held(each.target)} = ({held(each.target)} {sign} ({held(each.value)})).to({low})")


def buffer(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer" and len(node.args) > 1:
        yield Place(node.args[1], f"({held(node.args[1])}).to({low})")


def boundary(node: ast.AST, held: Held, low: str) -> Iterator[Place]:
    """The first or the last line of a block without autocast stands outside."""
    if not isinstance(node, ast.With) or "enabled=False" not in held(node.items[0].context_expr) or len(node.body) < 2 or len(node.items) > 1:
        return
    first, last, indent = node.body[0], node.body[-1], "\n" + " " * node.col_offset
    head, inner, lines = f"with {held(node.items[0].context_expr)}:", f"{indent}    ", [held(each) for each in node.body]
    above = range(first.lineno - 1, first.end_lineno or 0)
    yield Place(node, f"{lines[0].replace(inner, indent)}{indent}{head}{inner}{inner.join(lines[1:])}", lines=above)
    below = range(last.lineno, (last.end_lineno or 0) + 1)
    yield Place(node, f"{head}{inner}{inner.join(lines[:-1])}{indent}{lines[-1].replace(inner, indent)}", lines=below)


MISTAKES = {
    each.__name__: each
    for each in (
        cast,
        read,
        upcast,
        autocast,
        factory,
        logsumexp,
        log_softmax,
        argument,
        eps,
        order,
        ratio,
        arange,
        variance,
        accumulate,
        buffer,
        boundary,
    )
}
BEFORE_THE_RUN = ("buffer", "eps")
"""Those that are made in `__init__`, too."""
