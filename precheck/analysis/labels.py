"""Gives the label of a record in words, its phase and its module."""

from __future__ import annotations

from precheck.findings import Phase
from precheck.observe.records import Kind
from precheck.words import call_words, module_words, one_line

_PHASES: dict[Kind, Phase] = {
    "input": "data", "handed": "forward", "returned": "forward", "output": "forward", "loss": "forward", "gradient": "backward",
    "parameter-gradient": "backward", "update": "optimizer",
}  # fmt: skip


def phase_of(kind: Kind) -> Phase:
    return _PHASES[kind]


def module_of(name: str, kind: Kind) -> str:
    """The module to which a record belongs: a boundary's name without call and path, or the owner of a parameter."""
    if kind in ("parameter-gradient", "update"):
        return name.rpartition(".")[0]
    return "" if kind == "returned" or name in ("output", "output[]", "loss") else name.split("[")[0].split("#")[0]


def label(kind: Kind, name: str) -> str:
    """The record in words: "output of layers.0.attn", "gradient of head.weight", "the model's output[logits]"."""
    name = one_line(name)
    whole = "the model's output" if name in ("output", "output[]") else f"the model's output{name}" if name.startswith("[") else ""
    if kind in ("gradient", "parameter-gradient"):
        return f"gradient of {(kind == 'gradient' and whole) or module_words(name)}"
    if kind == "output":
        return whole or f"output of {module_words(name)}"
    if kind == "returned":
        function, call = call_words(name)
        return f"what {function} returns{call}"
    return "loss" if kind == "loss" else f"{kind} of {name}"
