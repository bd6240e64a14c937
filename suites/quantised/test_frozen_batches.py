"""The frozen batches: recipes by hand, each with a fault that is switched on by an argument, and healthy code that looks like them.

Each batch was committed before precheck was run on it. The batches from the fourth on follow faults that were reported in public.

| batch | faults | found on their line, as found | twins and look-alikes accused, as found | found since | accused since |
|---|---|---|---|---|---|
| second | 10 | 7 | 0 | 9 | 0 |
| third | 10 | 5 | 0 | 9 | 0 |
| fourth | 12 | 8 | 1 (`zero_point_in_the_bias`) | 11 | 0 |
| fifth | 12 | 3 | 0 | 12 | 0 |
| sixth | 20 | 10 | 3 (`padded_with_zero`, `bytes_that_are_factors`, `four_bits_in_nibbles`) | 20 | 0 |
| seventh | 20 | 7 | 5 (`chance_overwritten`, `chance_each_step`, `ternary_straight_through`, `nibbles_as_halves`, `bytes_taken_for_fnuz`) | 16 | 0 |
| eighth | 22 | 12 | 1 (`zero_points_in_the_unit_of_data`) | 19 | 0 |
| ninth | 26 | 10 | 1 (`column_major_scales`) | 23 | 0 |
| tenth | 26 | 10 | 0 | 17 | 0 |
| eleventh | 20 | 13 | 1 (`rows_by_chance`) | 17 | 0 |
| twelfth | 27 | 17 | 4 (`negative_scales_unsigned`, `input_factor_dropped`, `scales_with_signs`, `factors_in_one_number`) | 22 | 0 |
| thirteenth | 25 | 12 | 2 (`bytes_with_signs_flipped`, `experts_added_by_index`) | 22 | 0 |
| fourteenth | 30 | 16 | 0 | 20 | 0 |
| fifteenth | 30 | 13 | 0 | 21 | 0 |

`bytes_that_are_factors` also had a fault of its own, which was found: a scale of 256 wrapped to 0 in uint8. `chance_overwritten` and
`chance_each_step` returned the difference of two weights in bfloat16, 14 % of which was rounding, as was said. They return the weight since.
In the ninth batch `history_left_behind` without its fault had one step in which a delayed scale was eight times too small, as a warning said. Its
numbers grow more slowly since. `forward_codes_backward` and `weight_rounded_twice` had the sine of numbers whose rounding errors are longer than its
period, as a note said. They have a square since. A line where `factor_not_in_the_data` has its fault was not marked.
In the tenth batch the faults of `second_scale_across` and `signs_after_the_turn` were found on lines that were not marked. They are marked since.
In the eleventh batch a second line at fault of `axis_not_turned` is marked since.
`step_below_zero` is found since on the line that rounds, and what cuts numbers off is on the line before: both are marked.
In the fourteenth batch the cast that overflows in `multiplier_overflows` was found, and its line was not marked. It is marked since.
In the fifteenth batch `one_scale_for_kept_tokens`, `magnitude_before_the_update` and `transposed_codes_under_rows` were found on lines at fault that
were not marked. They are marked since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import eighth_healthy
import eighth_recipes
import eleventh_healthy
import eleventh_layers
import eleventh_recipes
import fifteenth_healthy
import fifteenth_layers
import fifteenth_recipes
import fifth_healthy
import fifth_recipes
import fourteenth_healthy
import fourteenth_layers
import fourteenth_recipes
import fourth_healthy
import fourth_recipes
import ninth_healthy
import ninth_healthy_layers
import ninth_layers
import ninth_recipes
import public_styles
import pytest
import second_healthy
import second_recipes
import seventh_healthy
import seventh_recipes
import sixth_healthy
import sixth_recipes
import tenth_healthy
import tenth_healthy_layers
import tenth_layers
import tenth_recipes
import third_healthy
import third_recipes
import thirteenth_healthy
import thirteenth_layers
import thirteenth_recipes
import torch
import twelfth_healthy
import twelfth_layers
import twelfth_recipes
from frozen import Program, assert_far_from_float64, assert_found, watched

import precheck

SCALE, CLIPPING, BIASED = "wrong-scale", "clipping", "biased-rounding"


@dataclasses.dataclass(frozen=True)
class Batch:
    """The module of a batch and that of its look-alikes. `others`: the rules that find faults, where it is not `wrong-scale`. `missed`: why."""

    recipes: ModuleType
    healthy: ModuleType
    others: Mapping[str, str]
    missed: Mapping[str, str]


BATCHES = (
    Batch(
        second_recipes, second_healthy,
        {"signed_amax": CLIPPING, "overflow_not_saturated": "overflow", "turned_after_amax": CLIPPING, "window_emptied": "underflow",
         "seed_reused": BIASED},
        {"turn_not_orthonormal": "the turns cancel but for one factor for the whole product, which may be meant"},
    ),
    Batch(
        third_recipes, third_healthy,
        {"largest_of_the_other": CLIPPING, "centred_then_cut": BIASED, "sums_in_half": "overflow", "scales_flushed": CLIPPING},
        {"weight_not_turned": "the input alone is turned in a forward pass; the weight may have been turned before, and a model may mix channels so"},
    ),
    Batch(
        fourth_recipes, fourth_healthy,
        {"amax_of_the_old_weight": CLIPPING, "unsigned_in_signed": CLIPPING},
        {"turned_when_packed": "the weight alone is turned in a forward pass: the input may have been turned before, or be meant so"},
    ),
    Batch(
        fifth_recipes, fifth_healthy,
        {"amax_not_reset": "underflow", "ranks_saturate": CLIPPING, "pairs_saturate": CLIPPING, "subnormals_cut": BIASED},
        {},
    ),
    Batch(
        sixth_recipes, sixth_healthy,
        {"junk_in_the_workspace": CLIPPING, "random_bits_too_low": BIASED, "carry_discarded": BIASED, "adapter_under_the_old_scale": CLIPPING,
         "one_step_low": CLIPPING, "saturates_too_early": CLIPPING, "range_without_zero": CLIPPING, "probabilities_flushed": BIASED},
        {},
    ),
    Batch(
        seventh_recipes, seventh_healthy,
        {"scale_floored_at_one": CLIPPING, "rescaled_too_late": CLIPPING, "truncated_to_int": BIASED, "bias_saturates": CLIPPING,
         "too_large_for_fnuz": CLIPPING, "chance_overwritten": "accumulated-drift"},
        {"errors_of_a_block_lost": "each code is the nearest one; that a better choice of codes exists is no fault of the arithmetic",
         "moments_without_a_zero": "each moment is within half a step; the division by eps that follows is the program's",
         "smoothing_tiled": "the factors reach the other operand in another order, through attention and repeated heads",
         "range_with_dead_lanes": "the range is 3.4 times too wide, as one is that must hold zero, which ONNX asks for"},
    ),
    Batch(
        eighth_recipes, eighth_healthy, {"fixed_range": CLIPPING},
        {"tokens_under_heads": "each code has its own scale; that heads and tokens have changed places would be the same in float32",
         "leftover_bytes": "what was never written may be masked after it was read, as other caches do; float32 makes the same NaN",
         "errors_of_another_bucket": "what rounding leaves is added to a gradient; that it belongs to another one is known to the program alone"},
    ),
    Batch(
        ninth_recipes, ninth_healthy, {"history_left_behind": CLIPPING, "factor_not_in_the_data": CLIPPING},
        {"exponent_of_the_quotient": "clipping costs less than three times what rounding to four bits costs, as it does under the standard's scales"},
    ),
    Batch(
        ninth_layers, ninth_healthy_layers, {"amax_before_the_product": CLIPPING, "chance_of_the_octave": BIASED},
        {"normalised_once": "the factors cancel but for one for the whole product, which may be meant",
         "outliers_twice": "two products are added, each of which is right; that a part is in both would be the same in float32"},
    ),
    Batch(
        tenth_recipes, tenth_healthy, {},
        {"greatest_of_the_last_part": "clipping costs less than three times what rounding to nf4 costs",
         "greatest_of_the_last_microbatch": "a warning: 9 of 40 casts lag behind, since four are made under one scale"},
    ),
    Batch(
        tenth_layers, tenth_healthy_layers, {"signs_after_the_turn": CLIPPING, "chance_then_nearest": BIASED, "step_below_zero": CLIPPING},
        {"offset_not_returned": "what is subtracted before rounding may be meant to be gone, as the mean of keys is",
         "sign_of_the_gain": "a weight that is multiplied by the magnitude of a gain may be meant so",
         "zeros_become_ones": "a sign has no code for zero; that some numbers should not be sent at all is known to the program alone",
         "sent_and_kept": "what is kept is data; that it should lose what was sent is known to the program alone",
         "bytes_taken_for_ranks": "codes of vectors are not followed: they are the places of the nearest of many vectors",
         "first_rows_divided": "a product alone does not show that its other operand should have been divided by the factors",
         "tail_not_emptied": "powers of two of weights: a logarithm that is rounded is no scaled number"},
    ),
    Batch(
        eleventh_recipes, eleventh_healthy, {},
        {"mask_of_the_store_turned": "some inputs get no gradient, which may be meant",
         "saturated_without_gradient": "what is at the bound of a range may be counted as beyond it"},
    ),
    Batch(
        eleventh_layers, eleventh_layers, {"range_of_the_whole_buffer": CLIPPING},
        {"lowest_is_zero": "each number is within half a step, and a range that begins at zero is what ONNX asks for"},
    ),
    Batch(
        twelfth_recipes, twelfth_healthy,
        {"gradient_scale_never_updated": "underflow", "scale_of_the_step_before": CLIPPING, "positions_not_calibrated": CLIPPING},
        {"gradients_rounded_to_zero": "the gradient is zero, as one is that is stopped on purpose"},
    ),
    Batch(
        twelfth_layers, public_styles,
        {"sums_in_half_before_the_factor": "overflow", "range_of_an_operand": CLIPPING, "minimum_for_maximum": CLIPPING,
         "groups_of_one_sign": CLIPPING},
        {"input_factor_dropped": "a warning: the product is off by 400, a number that the program wrote down, which may be meant",
         "smaller_neighbour": "the table of scales is coarse, so that the nearest place is half as far off as the next smaller one",
         "strides_from_the_shape": "codes and scales are numbers of one size in a page, and what is read from between them is not known as a scale",
         "constants_become_zero": "a scale of 1 for some rows wastes their bits; whether bits are wasted is asked of scales of one number alone"},
    ),
    Batch(
        thirteenth_recipes, thirteenth_healthy, {},
        {"exponent_with_another_bias": "a warning: the codes are off by 4, which a program may mean",
         "four_in_a_byte_by_quarters": "each code has its own scale; that columns have changed places would be the same in float32"},
    ),
    Batch(
        thirteenth_layers, thirteenth_layers, {"unscaled_before_it_is_rounded": CLIPPING},
        {"whole_bias_divided": "a bias that is divided by the factors of other channels may be meant so"},
    ),
    Batch(
        fourteenth_recipes, fourteenth_healthy, {"multiplier_overflows": "overflow"},
        {"blocks_in_the_order_of_memory": "each code has its own scale; that a weight is read transposed would be the same in float32",
         "halves_read_as_pairs": "each code has its own scale; that columns have changed places would be the same in float32",
         "zeros_get_an_exponent": "exponents are added to the bits of codes, which are no longer numbers then",
         "quarter_of_a_block_written": "codes that nothing decodes may be those of rows that are not needed, and zeros may be a padding",
         "adapter_in_the_zero_points": "zero points are real numbers, and what is added to them may be in their unit"},
    ),
    Batch(
        fourteenth_layers, fourteenth_layers, {},
        {"probabilities_not_scaled_back": "a factor of 256 that the program wrote down, which may be meant",
         "correction_of_the_first_block": "the mean of a block may be added to others",
         "sums_of_smoothed_keys": "what is subtracted before rounding may be meant to be gone, as the mean of all keys is",
         "factors_of_repeated_heads": "the factors of the two weights are different vectors, which may be meant",
         "gradient_stops_at_the_rounding": "the gradient of a weight that is fixed, while its step is learned, is zero as well"},
    ),
    Batch(
        fifteenth_recipes, fifteenth_healthy, {"token_scale_before_smoothing": CLIPPING},
        {"both_divided": "two operands that are divided by one vector may be meant, as features that are brought to one range are",
         "factors_by_rows": "factors of columns and their inverses for rows make a similar matrix, which may be meant",
         "constant_in_the_old_unit": "a constant that is divided by a scale: which one is meant is known to the program alone"},
    ),
    Batch(
        fifteenth_layers, fifteenth_layers, {"zero_point_of_the_batch_before": CLIPPING, "axis_of_the_transpose": CLIPPING},
        {"weights_not_centred": "an offset of one, which the program wrote down, may be meant",
         "folded_norm_corrected_the_wrong_way": "the deviations are vectors of data, which a result may be divided by twice",
         "step_gradient_without_its_second_term": "the gradient of a step is what its author wants it to be",
         "update_in_the_unit_of_data": "numbers below one that are added to codes may be noise",
         "expanded_by_another_power": "what is read is another power of what was written, which may be meant",
         "mean_of_the_fused_weight": "each part is off by one factor, and its codes are joined with others before it is multiplied by"},
    ),
)  # fmt: skip


def each(of: Callable[[Batch], Sequence[Callable[..., torch.Tensor]]]) -> pytest.MarkDecorator:
    """A test for each program of each batch."""
    made = [pytest.param(batch, program, id=program.__name__) for batch in BATCHES for program in of(batch)]
    return pytest.mark.parametrize(("batch", "program"), made)


programs = each(lambda batch: batch.recipes.BUGS)


@programs
def test_a_fault_does_harm_and_is_found_on_its_line(batch: Batch, program: Program) -> None:
    assert_found(program, batch.recipes, batch.others, batch.missed)


@programs
def test_the_same_code_without_the_fault_is_left_in_peace(batch: Batch, program: Program) -> None:
    assert not watched(program, False).findings


@each(lambda batch: batch.recipes.BUGS if hasattr(batch.recipes, "EXACT") else ())
def test_a_fault_is_far_from_float64_and_its_twin_is_not(batch: Batch, program: Program) -> None:
    assert_far_from_float64(program, batch.recipes.EXACT[program.__name__])


@each(lambda batch: batch.healthy.HEALTHY)
def test_healthy_look_alikes_are_left_in_peace(batch: Batch, program: Callable[[], torch.Tensor]) -> None:
    with precheck.watch() as report:
        program()
    assert not report.findings
