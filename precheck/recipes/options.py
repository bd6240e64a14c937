"""Reads the options of a framework's configuration. An option that nothing here reads may only have its default, so that none is ignored."""

from __future__ import annotations

import dataclasses
from typing import Any

SILENT = frozenset({
    "reduce_amax", "kernel_preference", "emulate", "pad_inner_dim", "enable_fsdp_float8_all_gather", "force_recompute_fp8_weight_in_bwd",
    "set_inductor_config", "version", "packing_format", "int4_packing_format", "int4_tile_packed_ntile", "intx_packing_format", "alg_id",
    "use_triton_kernel", "mm_config", "gemm_config_output", "gemm_config_grad_input", "gemm_config_grad_weight", "rht_sign_vector",
    "pad_token_groups_for_grouped_mm", "nvfp4_4over6_e4m3_use_256", "nvfp4_4over6_err_mode",
})  # fmt: skip
"""Options that change no number of an emulation. They say where numbers are stored, which kernel runs, and how it accumulates, which is in float32
here. The signs of a Hadamard matrix are drawn, and those of `nvfp4_4over6` mean nothing without it."""


class UnknownOptionError(Exception):
    """A configuration has an option that no recipe here supports. The message says which."""


class Options:
    """The options of one configuration."""

    def __init__(self, given: Any) -> None:
        self.given, self.known = given, set(SILENT)

    def read(self, name: str, otherwise: Any = None) -> Any:
        """The value of an option that a recipe follows. `otherwise`: if the configuration has no such option."""
        self.known.add(name)
        return getattr(self.given, name, otherwise)

    def word(self, name: str, otherwise: str) -> str:
        """The same for an option of an enum: its value if that is a word, or its name."""
        found = self.read(name)
        value = getattr(found, "value", None)
        return otherwise if found is None else (value if isinstance(value, str) else str(found)).rpartition(".")[2].lower()

    def need(self, name: str, *accepted: Any) -> Any:
        """The value of an option, which must be one of those accepted."""
        found = self.read(name, accepted[0])
        if found not in accepted:
            raise self.unknown(name)
        return found

    def unknown(self, name: str) -> UnknownOptionError:
        """The error about an option that no recipe follows."""
        return UnknownOptionError(f"{name}={getattr(self.given, name)!r} of {type(self.given).__name__}: no recipe here follows this option")

    def finish(self) -> None:
        """Raises UnknownOptionError for an option that was not read and does not have its default."""
        for field in dataclasses.fields(self.given) if dataclasses.is_dataclass(self.given) else ():
            if field.name not in self.known and getattr(self.given, field.name) != _default(field):
                raise self.unknown(field.name)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
