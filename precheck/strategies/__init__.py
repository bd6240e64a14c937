"""Strategies for hypothesis that draw tensors, tokens, padded batches and masks on which low precision tends to fail.

A draw consists of few choices and a seed, so that it can be shrunk: towards zeros, small shapes, contiguous memory and a magnitude of
one. For `precheck.search` and for any `@given`.
"""

from __future__ import annotations

try:
    import hypothesis as hypothesis
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    message = "precheck.strategies needs hypothesis; install it with: pip install hypothesis"
    raise ModuleNotFoundError(message, name="hypothesis") from None

from precheck.strategies.layouts import LAYOUTS as LAYOUTS
from precheck.strategies.masking import masks as masks
from precheck.strategies.masking import padded as padded
from precheck.strategies.tensors import tensors as tensors
from precheck.strategies.tokens import tokens as tokens

__all__ = ["LAYOUTS", "masks", "padded", "tensors", "tokens"]
