"""Adapts Keras models on torch: names layers and weights by their paths in the model, and sets the dtype policy to the precision of a run."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from precheck.observe.job import InputError
from precheck.observe.models.adapters import Guest
from precheck.words import dtype_name


class KerasGuest(Guest):
    """A Keras model whose layers compute in the format of its weights or of autocast, by Keras's own policies instead of autocast.
    Layers with a policy other than the model's (a softmax with dtype="float32") keep it. Keras keeps layers where torch does not
    look for them, and gives weights its own names. Here `named_modules` and `named_parameters` list them, as "dense" and "dense.kernel".
    """

    curable = False  # Keras's model has no submodule with these names

    def __init__(self, host: Any) -> None:
        if not host.built:
            raise InputError(f"{host.name} is not built: Keras makes its weights when it first sees an input; call it once, or give it a keras.Input")
        super().__init__(host, self._called)
        self.__dict__["_modules"] = {path: layer for path, layer in named_layers(host) if path}
        self.__dict__["weights"] = dict(named_weights(host))

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[tuple[str, torch.nn.Parameter]]:
        for path, weight in self.__dict__["weights"].items():
            yield f"{prefix}.{path}" if prefix else path, weight

    def named_modules(
        self, memo: set[torch.nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Module]]:
        yield prefix, self
        for path, layer in self._modules.items():
            assert layer is not None
            yield f"{prefix}.{path}" if prefix else path, layer

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:  # type: ignore[override]  # by any of its three signatures
        """The weights with the names of `named_parameters`."""
        return {path: weight.detach() for path, weight in self.named_parameters()}

    def modules(self, remove_duplicate: bool = True) -> Iterator[torch.nn.Module]:
        """Also the modules that torch finds in the host and in layers, since both register weights."""
        yield self
        seen = {id(self)}
        for root in (self.__dict__["host"], *self._modules.values()):
            for module in root.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield module

    def _called(self, *args: Any, **kwargs: Any) -> Any:
        host = self.__dict__["host"]
        device = next((weight.device.type for weight in self.parameters()), "cpu")
        name = self._policy(device)
        with _under(host, name), torch.autocast(device, enabled=False):
            return host(*args, **kwargs)

    def _policy(self, device: str) -> str:
        """The policy for the present run. "" keeps the model's own."""
        stored = {weight.dtype for weight in self.parameters() if weight.is_floating_point()}
        if torch.is_autocast_enabled(device):
            return f"mixed_{dtype_name(torch.get_autocast_dtype(device))}"
        return dtype_name(stored.pop()) if len(stored) == 1 else ""


@contextlib.contextmanager
def _under(host: Any, name: str) -> Iterator[None]:
    if not name:
        yield
        return
    keras: Any = sys.modules["keras"]
    own = host.dtype_policy.name
    before = [(layer.__dict__, layer._dtype_policy) for layer in (host, *_layers(host)) if layer.dtype_policy.name == own]
    policy = keras.dtype_policies.DTypePolicy(name)
    try:
        for held, _ in before:
            held["_dtype_policy"] = policy
        yield
    finally:
        for held, was in before:
            held["_dtype_policy"] = was


def _layers(host: Any) -> list[Any]:
    return [layer for layer in host._flatten_layers(include_self=False) if layer is not host]


def named_layers(host: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """A Keras layer and the layers in it, with their names. A model that Keras wraps around the host has no path."""
    spelt = _Spelling(host)
    yield "", host
    for layer in _layers(host):
        yield spelt(layer.path or ("" if hasattr(layer, "layers") else layer.name)), layer


def named_weights(host: Any) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Each weight once. It reads `_value`, since `value` is a cast copy while a layer runs."""
    spelt = _Spelling(host)
    yield from {id(each._value): (spelt(each.path), each._value) for each in host.variables}.values()


class _Spelling:
    """Turns Keras paths, "classifier/dense_7/kernel", into names within the model, "dense_1.kernel".
    Keras counts unnamed layers over the whole process. Here they are counted within the model, so that the same model has the same names each time
    it is made, also in a golden.
    """

    def __init__(self, host: Any) -> None:
        self.within = f"{host.path or host.name}/"
        self.own: dict[str, str] = {}
        numbers: Counter[str] = Counter()
        paths = [(each.path or each.name).removeprefix(self.within) for each in (*_layers(host), *host.variables)]
        for name in dict.fromkeys(part for path in paths for part in path.split("/")):
            kind, numbered, number = name.rpartition("_")
            stem = kind if numbered and number.isdigit() else name
            if stem in _automatic(host):
                self.own[name] = f"{stem}_{numbers[stem]}" if numbers[stem] else stem
                numbers[stem] += 1

    def __call__(self, path: str) -> str:
        return ".".join(self.own.get(part, part).replace(".", "_") for part in path.removeprefix(self.within).split("/"))


def _automatic(host: Any) -> set[str]:
    """Keras's names for unnamed layers and seeds: their classes in snake case."""
    return {re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=.)(?=[A-Z][a-z])", "_", type(each).__name__).lower() for each in _layers(host)} | {"seed_generator"}
