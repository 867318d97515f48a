"""Every planted fault: the invariant it breaks, the mutation, and the check that must fail with it.

`PYTHONPATH=tests python -m faults.table > docs/faults.md` writes `docs/faults.md` from this table.
Later issues add their rows here and their mutations to `plants.py`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from distributed import test_captured as ranks
from execution import calls, programs
from rich.errors import MarkupError

import gtensor as gt
from gtensor.engine.handle.errors import GradientError
from gtensor.testing import opcheck

from . import (
    checks,
    checks_files,
    plants,
    plants_capture,
    plants_context,
    plants_files,
    plants_interrupts,
    plants_numbers,
    plants_numerics,
    plants_places,
    plants_random,
    plants_recurrent,
    plants_rounding,
    plants_streams,
    plants_transforms,
    plants_variants,
)

Plant = Callable[[], AbstractContextManager[Any]]


class ByOpcheck:
    """`opcheck` of one op; one of its checks must be the one that fails."""

    def __init__(self, op: str, *names: str) -> None:
        self.name = f"opcheck {op}"
        self.op = op
        self.names = names

    def __str__(self) -> str:
        return f"`opcheck({self.op!r})`: " + " or ".join(self.names)

    def __call__(self) -> None:
        opcheck(self.op, device="cpu")


class ByCheck:
    """A function of `checks.py`."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.name = function.__name__
        self.function = function

    def __str__(self) -> str:
        return f"`faults/checks.py`: {self.name.replace('_', ' ')}"

    def __call__(self) -> None:
        self.function()


class ByTest:
    """A test of another file, called unchanged."""

    def __init__(self, module: str, test: str, **arguments: Any) -> None:
        self.name = test.removeprefix("test_")
        self.module = module
        self.test = test
        self.arguments = arguments

    def __str__(self) -> str:
        return f"`{self.module.replace('.', '/')}.py`: {self.name.replace('_', ' ')}"

    def __call__(self) -> None:
        getattr(importlib.import_module(self.module), self.test)(**self.arguments)


class ByVariant(ByTest):
    """The test of every variant of a public function."""

    def __init__(self, function: str) -> None:
        super().__init__(_VARIANTS, "test_every_variant", name=function)
        self.name = f"variants of {function}"


class ByHostTest(ByTest):
    """A test that needs host devices; only with `pytest --host-cuda`."""


class ByRaces:
    """A program of `hostcuda/programs.py` in random orders; only with `pytest --host-cuda`."""

    def __init__(self, program: str) -> None:
        self.name = f"orders of {program}"
        self.program = program

    def __str__(self) -> str:
        return f"`hostcuda/programs.py`: {self.program.replace('_', ' ')}"

    def __call__(self) -> None:
        from hostcuda import programs

        assert not programs.wrong(programs.PROGRAMS[self.program], range(_ORDERS))


_ORDERS = 12  # less than half of the orders may show a fault


@dataclass(frozen=True)
class Fault:
    """One row. `plant()` is a context with the fault; its docstring describes the mutation."""

    invariant: str
    plant: Plant
    killer: ByOpcheck | ByCheck | ByTest | ByHostTest | ByRaces
    raises: type[Exception] = AssertionError  # the error, if it is not a failed assertion

    @property
    def name(self) -> str:
        return self.plant.__name__

    @property
    def mutation(self) -> str:
        return " ".join((inspect.getdoc(self.plant) or "").split())


_STATES = "engine.test_graph_states"
_SHORT = "engine.test_short_calls"
_WALK = "engine.test_walk"
_IN_PLACE = "engine.test_added_in_place"
_FORMS = "engine.test_in_place_forms"
_CONTEXT = "nn.test_attention_context"
_PLACES = "engine.test_places"
_HIGHER = "engine.test_higher_order"
_LAYOUTS = "ops.elementwise.test_ufunc_layouts"
_GAMMA = "ops.sampling.test_gamma"
_DISTRIBUTIONS = "distributions.test_distributions"
_GRADIENTS = "ops.elementwise.test_elementwise_gradients"
_INTERRUPTS = "engine.test_interrupts"
_WHOLE = "optim.test_whole_steps"
_RANKS = "distributed.test_captured"
_CUBLAS, _CUBLASLT = "hostcuda.test_libraries_cublas", "hostcuda.test_libraries_cublaslt"
_CUSOLVER, _CUFFT = "hostcuda.test_libraries_cusolver", "hostcuda.test_libraries_cufft"
_CUB, _CURAND = "hostcuda.test_libraries_cub", "hostcuda.test_libraries_stubs"
_KERNELS = "hostcuda.test_kernels_compiler"
_VARIANTS = "variants.test_variants"
_HALF, _SINGULAR = "ops.reduce.test_half_reductions", "ops.linalg.test_singular"

FAULTS = [
    # values
    Fault("a path computes the op", plants.value_off, ByOpcheck("exp", "value")),
    Fault("a fused path computes its composed form", plants.composed_form_off,
          ByOpcheck("tanh_grad", "composed", "backward")),
    Fault("an op keeps its inputs' dtype", plants.wide_result, ByOpcheck("exp", "dtypes")),
    Fault("a path writes into `out`", plants.out_ignored, ByOpcheck("exp", "out")),
    Fault("`out` may be an input of an elementwise op", plants.out_cleared_first,
          ByOpcheck("exp", "alias")),
    Fault("temporaries are as large as a tile", plants.full_size_temporary,
          ByOpcheck("tanh_grad", "tiles")),
    Fault("tiles cover the array", plants.last_tile_dropped, ByOpcheck("tanh_grad", "tiles")),
    Fault("any layout gives the same value", plants.strides_ignored,
          ByOpcheck("exp", "layouts")),
    Fault("a path does not write its inputs", plants.input_written, ByOpcheck("exp", "writes")),
    Fault("the error for a missing derivative names the op", plants.refusal_without_name,
          ByOpcheck("nextafter", "refusal")),
    Fault("kernels in C have the values of NumPy's paths", plants_numerics.kernel_off,
          ByTest("ops.test_compiled_rows", "test_kernels_have_the_values_of_numpy",
                 case="softmax", dtype="f4")),
    Fault("kernels in C hide what causal attention does not see", plants_numerics.next_key_seen,
          ByTest("ops.test_compiled_rows", "test_kernels_have_the_values_of_numpy",
                 case="attention", dtype="f4")),
    Fault("formulas in C have the values of NumPy's paths", plants_numerics.formula_off,
          ByOpcheck("gelu", "compiled")),
    Fault("a kernel in C is found by its formula", plants_numerics.name_alone,
          ByTest("ops.define.test_formula_c", "test_another_formula_of_the_same_name")),
    Fault("a kernel in C is given the numbers of its step", plants_numerics.constants_old,
          ByTest("ops.define.test_formula_c", "test_updates_are_numpys", name="AdamW")),
    Fault("kernels in C warn as NumPy does", plants_numerics.flags_unseen,
          ByTest("ops.test_compiled_rows", "test_flags_warn_as_those_of_numpy",
                 name="layer_norm")),
    # rules
    Fault("a rule is right to 0.05 %", plants.rule_off, ByOpcheck("tanh", "backward")),
    Fault("a rule is right to 0.0005 %", plants.rule_slightly_off, ByOpcheck("tanh", "torch")),
    Fault("the error of sums of equal, alternating or random terms does not grow with their number",
          plants_transforms.sums_in_one_total,
          ByTest("ops.reduce.test_sums", "test_the_error_does_not_grow_with_the_number_of_terms",
                 layout="the first axis", dtype="float32")),
    Fault("the mean of equal numbers is this number",
          plants_transforms.rounded_means_stay,
          ByTest("ops.reduce.test_sums", "test_the_layer_norm_of_equal_numbers", columns=7,
                 dtype="float32")),
    Fault("a rule takes what it will be given", plants_transforms.arguments_unchecked,
          ByTest("ops.test_definitions", "test_a_rule_of_other_arguments_fails_at_its_definition",
                 what="composed form")),
    Fault("a rule keeps the precision of its dtype", plants.rule_rounds,
          ByOpcheck("tanh", "precision")),
    Fault("an input's gradient does not depend on which others need one", plants.rule_skips_input,
          ByOpcheck("multiply", "masks")),
    Fault("a gradient has the shape of its input", plants.gradient_not_summed,
          ByOpcheck("add", "backward")),
    Fault("the recorded rule is the raw one", plants.recorded_rule_off,
          ByOpcheck("tanh", "recorded")),
    Fault("a recorded gradient depends on the saved values", plants.recorded_rule_detached,
          ByOpcheck("tanh", "second order")),
    Fault("the tangent is the transpose of the backward rule", plants.tangent_off,
          ByOpcheck("tanh", "tangent")),
    Fault("examples of a batch are apart", plants.batch_axis_broadcast,
          ByOpcheck("add", "batch"), raises=ValueError),
    Fault("a saved value is a function of the inputs, also in nested transforms",
          plants_transforms.statistics_are_constants,
          ByTest("ops.test_nested_rules", "test_an_op_in_nested_transforms_is_the_loop",
                 name="batch_norm")),
    Fault("a checkpointed function runs again outside of transforms",
          plants_transforms.checkpoint_within_the_walks_levels,
          ByTest("engine.test_checkpointing_transforms",
                 "test_the_second_run_is_outside_of_the_walks_transforms", name="grad",
                 walk="batched", outside=True), raises=GradientError),
    Fault("a leading axis of length 1 is no axis to sum over",
          plants_transforms.single_product_in_parts,
          ByTest("ops.linalg.test_leading_shapes", "test_products_of_matrices", rows=3, columns=5),
          raises=ValueError),
    Fault("the gradient of a recurrent weight takes the states before the steps",
          plants_recurrent.states_after_the_steps, ByOpcheck("lstm", "backward", "torch")),
    Fault("a recurrent gradient has derivatives", plants_recurrent.slopes_not_differentiated,
          ByOpcheck("lstm", "second order")),
    Fault("every input of a recurrent layer has a tangent",
          plants_recurrent.state_without_a_tangent, ByOpcheck("gru", "tangent")),
    Fault("a factor of a scan moves the state before its step",
          plants_recurrent.scan_with_the_state_after,
          ByOpcheck("linear_scan", "recorded")),
    Fault("the gradient of a scan has derivatives",
          plants_recurrent.scan_without_the_factors_history,
          ByOpcheck("linear_scan", "second order")),
    # ownership
    Fault("a rule gives its hold away once", plants.given_twice, ByOpcheck("add", "writes"),
          raises=GradientError),
    Fault("a hold given away twice gives wrong gradients", plants.given_twice_unnoticed,
          ByCheck(checks.random_graphs_have_numpys_gradients)),
    Fault("lending adds a hold", plants.lent_without_hold,
          ByCheck(checks.random_graphs_have_numpys_gradients)),
    Fault("storage is written by its last holder only", plants.written_by_any_holder,
          ByCheck(checks.random_graphs_have_numpys_gradients)),
    Fault("a saved array is written by its last reader only", plants.taken_while_read,
          ByTest("engine.test_taken", "test_logits_that_are_still_read_are_not_written",
                 reader="the tensor", device="cpu")),
    Fault("g may be reused after its last use", plants.reused_too_early,
          ByOpcheck("multiply", "upstream")),
    Fault("`into` copies a gradient that has another holder", plants.into_without_copy,
          ByCheck(checks.random_graphs_have_numpys_gradients)),
    Fault("the caller's gradient is only read", plants.seed_as_own,
          ByTest(_WALK, "test_the_caller_keeps_his_gradient")),
    Fault("a rule only reads the caller's gradient", plants.rule_writes_upstream,
          ByOpcheck("tanh", "writes")),
    Fault("gradients add up in `.grad`", plants.grad_replaced,
          ByTest(_IN_PLACE, "test_what_was_read_stays_and_costs_the_matrix_once")),
    Fault("a walk adds to the `.grad` that it takes", plants.grad_forgotten,
          ByOpcheck("exp", "accumulate")),
    Fault("a `.grad` that was read is not written by a walk", plants.read_grad_added_to,
          ByTest(_IN_PLACE, "test_what_was_read_stays_and_costs_the_matrix_once")),
    Fault("a leaf has its `.grad` again after an error", plants.grad_not_put_back,
          ByTest(_IN_PLACE, "test_under_debug_an_error_leaves_every_gradient_as_it_was")),
    Fault("a leaf has no `.grad` while a walk adds to it", plants.grad_left_with_its_leaf,
          ByTest(_IN_PLACE, "test_what_another_walk_stores_meanwhile_is_added", fails=False)),
    # the graph
    Fault("every in-place write increases the version", plants.version_not_counted,
          ByTest(_STATES, "test_an_overwritten_save_names_the_op_and_the_line")),
    Fault("a short text counts its write", plants.short_write_not_counted,
          ByTest(_SHORT, "test_a_write", how="plain", form="*=")),
    Fault("a short text of a view shares the storage", plants.short_view_apart,
          ByTest(_SHORT, "test_a_view_or_a_joined_tensor", dtype="float32", how="plain")),
    Fault("views see what an in-place form writes", plants.views_left_behind,
          ByTest(_FORMS, "test_a_view_and_its_base_see_the_write")),
    Fault("an in-place form leaves records what they saved", plants.kept_input_overwritten,
          ByTest(_FORMS, "test_what_an_earlier_op_saved_stays_whole"), raises=gt.GradientError),
    Fault("a graph is consumed by its walk", plants.never_consumed,
          ByTest(_STATES, "test_a_consumed_graph_names_the_op_and_the_line"), raises=IndexError),
    Fault("a walk claims its records", plants.unclaimed_walk,
          ByCheck(checks.a_graph_is_walked_once_at_a_time)),
    Fault("a claim ends with its walk, also by an error", plants.claim_kept,
          ByCheck(checks.a_failed_walk_releases_the_graph), raises=GradientError),
    Fault("after any exit from a walk its slots are empty", plants.slots_kept,
          ByCheck(checks.a_failed_walk_empties_its_slots)),
    Fault("gradients are stored together, at the end", plants.committed_on_arrival,
          ByCheck(checks.an_error_before_the_end_leaves_grad_alone)),
    # places on the tape
    Fault("a handle's node is used only while its memory has the recorded values",
          plants_places.stale_place,
          ByTest(_PLACES, "test_a_loss_written_through_a_view_is_refused_by_its_old_handle")),
    Fault("cutting the graph in a function of `gt.grad` is an error",
          plants_places.cut_unseen,
          ByTest(_HIGHER, "test_arrays_of_outer_variables_are_refused_in_inner_functions")),
    Fault("a value whose graph was consumed may depend on any argument", plants_places.walked_off,
          ByTest(_HIGHER, "test_an_array_of_what_an_inner_walk_consumed_is_refused")),
    Fault("a copy of a tensor carries its gradient", plants_places.copied_without_history,
          ByTest(_HIGHER, "test_copies_of_a_tensor_carry_its_gradient", copied=gt.tensor)),
    Fault("a result that does not depend on an argument is an error",
          plants_places.unused_as_zeros,
          ByTest(_HIGHER, "test_a_result_must_depend_on_the_arguments")),
    # memory
    Fault("the walk drops saved arrays as it passes", plants.saves_leaked,
          ByCheck(checks.saved_arrays_are_freed_by_the_walk)),
    Fault("a record never refers to a tensor", plants.record_refers_to_tensor,
          ByCheck(checks.forwards_leave_nothing_alive)),
    Fault("live blocks do not overlap", plants.live_block_reused,
          ByCheck(checks.live_blocks_do_not_overlap)),
    Fault("a block lives as long as a view of its array", plants.block_not_held,
          ByCheck(checks.arrays_keep_their_blocks)),
    # random numbers
    Fault("keys that follow from one are independent", plants_random.folded_as_split,
          ByTest("test_random", "test_keys_that_follow_from_one_are_independent")),
    Fault("gamma draws have their distribution", plants_random.proposals_all_accepted,
          ByTest(_GAMMA, "test_gamma_draws_have_their_distribution", a=1.0)),
    Fault("Poisson draws have their distribution", plants_random.poisson_share_off,
          ByTest("ops.sampling.test_samplers", "test_poisson_counts_have_their_distribution",
                 mean=10.0)),
    Fault("a gamma draw moves along its distribution function", plants_random.digamma_off,
          ByTest(_GAMMA, "test_the_slope_is_that_of_the_distribution_function")),
    Fault("the density of an event is the product over its axes", plants_random.events_not_added_up,
          ByTest(_DISTRIBUTIONS, "test_independent_adds_up_and_divergences_follow")),
    Fault("draws of small concentrations lie within the support",
          plants_random.draws_at_their_ends, ByTest(_DISTRIBUTIONS, "test_tiny_concentrations")),
    # layouts, 0-d tensors, derivatives of every order
    Fault("a ufunc writes buffers of any layout", plants_numerics.ufuncs_trusted,
          ByTest(_LAYOUTS, "test_ufuncs_write_any_layout", function=np.negative)),
    Fault("an op works on 0-d tensors, also in arena memory", plants_numerics.numpy_scalar_unknown,
          ByOpcheck("max", "arena"), raises=TypeError),
    Fault("a power has derivatives of every order", plants_numerics.exponent_replaced,
          ByTest(_GRADIENTS, "test_derivatives_of_powers_to_the_fourth_order", bases="positive")),
    Fault("a power of 0 has PyTorch's gradients", plants_numerics.gradient_of_powers_of_0_is_0,
          ByTest(_GRADIENTS, "test_powers_at_the_border_of_their_domain")),
    Fault("svd with full matrices has a gradient", plants_numerics.space_beside_ignored,
          ByTest("ops.linalg.test_linalg_gradients", "test_the_vectors_beside_the_singular_ones",
                 shape=(4, 2))),
    Fault("eigenvectors have the same signs on every device", plants_numerics.signs_of_the_library,
          ByTest("ops.linalg.test_linalg", "test_signs_of_vectors_do_not_depend_on_the_library",
                 dtype="float32")),
    Fault("only CUDA's allocation error becomes a MemoryError",
          plants_numerics.all_errors_are_of_memory,
          ByTest("backend.test_cuda_seam",
                 "test_only_the_status_for_memory_says_that_memory_is_out", status=700, kind=None),
          raises=MemoryError),
    Fault("a 0-d tensor is one element along axis 0", plants_numerics.no_axis_0_of_0d,
          ByTest("ops.reduce.test_reductions", "test_a_0d_tensor_is_one_element_along_axis_0",
                 name="softmax"), raises=ValueError),
    # public functions on unusual inputs
    Fault("strides do not change a function", plants_variants.read_in_memory_order,
          ByVariant("nn.functional.softmax")),
    Fault("a special function has the digits of its dtype",
          plants_numbers.special_function_in_single,
          ByTest("ops.elementwise.test_special_functions", "test_digits_are_those_of_mpmath",
                 name="ndtr", rng=np.random.default_rng(6))),
    Fault("the last of several writes stays", plants_variants.writes_in_memory_order,
          ByVariant("scatter")),
    Fault("equal extremes share the gradient", plants_variants.extremes_not_shared,
          ByTest("ops.arrange.test_scattering",
                 "test_equal_extremes_share_the_gradient_and_nan_stays")),
    Fault("sums at indices repeat bit for bit on CUDA, if asked", plants_variants.sums_in_any_order,
          ByHostTest("ops.arrange.test_scattering", "test_sums_repeat_bit_for_bit",
                     rng=np.random.default_rng(5))),
    Fault("a leading axis of 1 stays", plants_variants.leading_one_dropped, ByVariant("sort")),
    Fault("a result of no elements has its dtype", plants_variants.wide_without_elements,
          ByVariant("sum")),
    Fault("no elements are no error of arithmetic", plants_variants.divided_by_no_elements,
          ByVariant("mean")),
    Fault("0-d in, 0-d out", plants_variants.axis_of_a_0d_result, ByVariant("tanh")),
    Fault("a half type has float64's value, rounded", plants_variants.too_large_in_half,
          ByVariant("linalg.vector_norm")),
    Fault("a refusal says what is wanted", plants_variants.no_classes_refused_by_numpy,
          ByVariant("nn.functional.cross_entropy of probabilities")),
    # inputs, and numbers at the ends of their range
    Fault("reductions of half types are rounded once", plants_rounding.reduced_in_half,
          ByTest(_HALF, "test_half_types_are_rounded_once", name="std",
                 dtype=np.dtype(np.float16), device="cpu", rng=np.random.default_rng(0))),
    Fault("a variance of half types on CUDA takes its mean in float32",
          plants_rounding.mean_in_half,
          ByHostTest(_HALF, "test_deviations_of_large_halves", device="cuda")),
    Fault("slopes of half types do not come from a rounded output",
          plants_rounding.slope_of_a_rounded_output,
          ByTest("ops.activations.test_activations",
                 "test_slopes_of_half_types_lose_nothing_to_a_rounded_output", name="elu",
                 dtype="bfloat16", device="cpu")),
    Fault("slopes at kinks are PyTorch's", plants_rounding.wrong_side_of_a_kink,
          ByTest("ops.activations.test_activations", "test_slopes_at_kinks_are_pytorchs",
                 name="hardswish", device="cpu")),
    Fault("a mean over no weight has no finite gradient", plants_rounding.nothing_divided_by_one,
          ByTest("ops.losses.test_losses", "test_a_mean_over_no_weight_has_no_finite_gradient",
                 name="weights of 0", device="cpu")),
    Fault("a loss scale stays above 0", plants_rounding.scale_without_a_floor,
          ByTest("optim.test_grad_scaler", "test_the_scale_never_falls_to_zero", device="cpu")),
    Fault("gradients of singular vectors form no squares",
          plants_rounding.squares_of_singular_values,
          ByTest("ops.linalg.test_linalg_gradients",
                 "test_gradients_of_singular_vectors_do_not_depend_on_the_scale",
                 scale=2.0**-70, shape=(4, 4), device="cpu", rng=np.random.default_rng(0)),
          RuntimeWarning),
    Fault("a determinant has second derivatives for every rank",
          plants_rounding.products_by_division,
          ByTest(_SINGULAR, "test_second_derivatives_of_determinants_are_right_for_every_rank",
                 n=3, rank=1, device="cpu", rng=np.random.default_rng(0))),
    Fault("a singular matrix leaves its batch alone", plants_rounding.batch_refused_for_one,
          ByTest(_SINGULAR, "test_a_singular_matrix_leaves_the_others_their_gradient_of_slogdet",
                 device="cpu"), np.linalg.LinAlgError),
    Fault("no result on CUDA is memory that a library left unwritten",
          plants_rounding.status_ignored,
          ByHostTest(_SINGULAR, "test_a_failure_on_cuda_is_not_finite_and_nothing_else_changes",
                     name="inv", lead=(3,), dtype="float32")),
    Fault("no result on CUDA is of an iteration that did not converge",
          plants_rounding.convergence_taken_for_granted,
          ByHostTest(_SINGULAR, "test_a_failure_on_cuda_is_not_finite_and_nothing_else_changes",
                     name="S", lead=(3,), dtype="float32")),
    Fault("a failed factorization on the host device writes its status only",
          plants_rounding.failure_writes_factors,
          ByTest(_CUSOLVER, "test_a_failed_factorization_writes_its_status_only", t="S")),
    Fault("a kept gradient is of the values after a write through a view",
          plants_rounding.kept_gradient_stays_behind,
          ByTest("engine.test_in_place",
                 "test_a_kept_gradient_is_of_the_values_after_a_write_through_a_view",
                 name="a part", saved="before", create_graph=False, device="cpu")),
    Fault("elements are numbers", plants_numbers.objects_let_in,
          ByCheck(checks.only_numbers_are_elements)),
    Fault("no mask is dropped", plants_numbers.masks_dropped, ByCheck(checks.no_mask_is_dropped)),
    Fault("large logits have accurate gradients",
          plants_numbers.log_of_the_sum_absorbed,
          ByCheck(checks.large_logits_have_the_gradient_of_small_ones)),
    Fault("each input of a gate has its own gradient", plants_numbers.gates_gradients_exchanged,
          ByHostTest("ops.test_definitions", "test_op_on_gpu_in_one_dtype", name="swish_gated")),
    Fault("what is kept by dropout is scaled, its gradient, too",
          plants_numbers.kept_gradients_not_scaled, ByOpcheck("relu_dropout", "backward")),
    Fault("a gradient is dropped where its value was",
          plants_numbers.another_mask_for_the_gradient, ByOpcheck("gelu_dropout", "backward")),
    Fault("a residual sum is rounded once", plants_numbers.branch_rounded_before_the_sum,
          ByTest("ops.linalg.test_feed_forward", "test_a_sum_is_rounded_once")),
    Fault("a norm adds its gradient to others", plants_numbers.norm_replaces_the_other_gradient,
          ByCheck(checks.a_norm_beside_a_residual_has_both_gradients)),
    Fault("a huge gradient does not freeze its parameter", plants_numbers.mean_square_overflows,
          ByCheck(checks.a_huge_gradient_does_not_stop_adam)),
    Fault("an error of the cleanup does not hide the first", plants_numbers.clearing_up_raises,
          ByCheck(checks.out_of_memory_is_raised_although_the_cleanup_fails)),
    Fault("a listener keeps no owner of blocks alive", plants_numbers.owner_kept_by_listener,
          ByCheck(checks.a_timeline_keeps_no_released_plan_alive)),
    # captured steps
    Fault("each op of a fused call is lowered alone", plants_capture.composed_formulas_simplified,
          ByTest("execution.test_fusing", "test_relaxed_fusing_folds_numbers")),
    Fault("a captured write follows the reads before it", plants_capture.writes_before_reads,
          ByTest("execution.test_fusing",
                 "test_a_write_follows_what_read_the_memory_before")),
    Fault("a sum of tiles is NumPy's sum", plants_capture.sums_parted_anywhere,
          ByTest("execution.test_fusing", "test_a_loss_over_rows_is_one_call")),
    Fault("a write is recorded", plants_capture.writes_unrecorded,
          ByTest("execution.test_captured", "test_replays_equal_the_step",
                 make=programs.views_that_are_written)),
    Fault("a replay computes with its own arguments", plants_capture.arguments_of_the_recording,
          ByTest("execution.test_captured_ops", "test_a_replay_with_other_values_is_the_op",
                 name="tanh")),
    Fault("a number that changes from call to call is an error",
          plants_capture.numbers_not_compared,
          ByTest("execution.test_captured_calls", "test_what_cannot_be_repeated_is_refused",
                 make=calls.numbers_of_python)),
    Fault("views of one array are told apart", plants_capture.places_not_compared,
          ByTest("execution.test_captured_calls", "test_replays_equal_the_step",
                 make=calls.views_of_one_array, fuse=True)),
    Fault("a step given what it reads outside is another program",
          plants_capture.memory_outside_not_compared,
          ByTest("execution.test_captured_calls", "test_replays_equal_the_step",
                 make=calls.what_the_step_reads_from_outside, fuse=True)),
    Fault("ranks make their collectives in one order", plants_capture.collectives_without_order,
          ByTest(_RANKS, "test_collectives", make=ranks.crossed)),
    Fault("no collective is left out", plants_capture.collectives_dropped,
          ByTest(_RANKS, "test_collectives", make=ranks.into_given)),
    Fault("a collective is made once", plants_capture.collectives_doubled,
          ByTest(_RANKS, "test_collectives", make=ranks.into_given)),
    Fault("what ranks sum is no constant", plants_capture.sums_of_ranks_folded,
          ByTest(_RANKS, "test_collectives", make=ranks.in_place), raises=ValueError),
    Fault("what is exchanged is in the bucket", plants_capture.copies_to_buckets_unrecorded,
          ByTest(_RANKS, "test_training_is_the_same", name="mlp", size=2)),
    Fault("a replay goes on where the cache ends", plants_capture.positions_of_the_first_call,
          ByTest("models.test_captured_generation", "test_one_program_serves_all_positions",
                 kind="rotary", dtype="float32", device="cpu", rng=np.random.default_rng())),
    Fault("a replay counts its positions", plants_capture.positions_not_counted,
          ByTest("models.test_captured_generation", "test_one_program_serves_all_positions",
                 kind="learned", dtype="float32", device="cpu", rng=np.random.default_rng())),
    Fault("no replay writes beyond a cache", plants_capture.positions_beyond_the_capacity,
          ByTest("models.test_captured_generation",
                 "test_a_replay_beyond_the_capacity_is_an_error_with_nothing_done",
                 kind="rotary", device="cpu", rng=np.random.default_rng())),
    Fault("a cache with other memory is another program", plants_capture.replaced_caches_unnoticed,
          ByTest("models.test_captured_generation", "test_caches_that_are_replaced_are_found",
                 rng=np.random.default_rng())),
    # untrusted files and states
    Fault("a size in a file is bounded before it is used", plants_files.header_unbounded,
          ByCheck(checks_files.sizes_are_bounded_before_anything_is_read)),
    Fault("reading stops at a hole in a sparse file", plants_files.holes_read,
          ByCheck(checks_files.sizes_are_bounded_before_anything_is_read)),
    Fault("only regular files are read", plants_files.pipe_read,
          ByCheck(checks_files.a_pipe_is_refused)),
    Fault("no size in a pickle is trusted", plants_files.python_unpickler_used,
          ByCheck(checks_files.a_pickle_cannot_claim_memory)),
    Fault("each fact of a snapshot has its type", plants_files.facts_unchecked,
          ByCheck(checks_files.facts_of_another_type_are_refused), raises=TypeError),
    Fault("names in a file send no control characters", plants_files.names_unprinted,
          ByCheck(checks_files.names_are_shown_as_they_are)),
    Fault("names in a file are not interpreted as markup", plants_files.names_as_markup,
          ByCheck(checks_files.names_are_shown_as_they_are), raises=MarkupError),
    Fault("every field of a random state is checked", plants_files.buffer_position_unchecked,
          ByCheck(checks_files.a_random_state_is_checked)),
    Fault("the next save removes files of a killed rotation", plants_files.killed_rotation_left,
          ByCheck(checks_files.the_next_save_removes_what_a_killed_rotation_left)),
    Fault("an error of a save names the file", plants_files.folder_named,
          ByCheck(checks_files.a_save_names_its_file)),
    # interrupts, forks and finalizers
    Fault("an interrupt never prevents a free", plants_interrupts.free_enters_python,
          ByTest("memory.arena.test_stitched",
                 "test_an_interrupt_at_any_point_leaves_the_arena_whole", part="free")),
    Fault("an interrupt loses no segment", plants_interrupts.new_segment_given_once,
          ByTest("memory.arena.test_interrupts", "test_an_interrupt_while_the_arena_grows")),
    Fault("all locks are free in a forked child", plants_interrupts.lock_unknown_to_forks,
          ByTest("memory.arena.test_forks",
                 "test_a_child_forked_in_the_middle_of_anything_has_all_locks_free")),
    Fault("a finalizer under a lock of the engine may call backward",
          plants_interrupts.claims_not_reentrant,
          ByTest(_INTERRUPTS, "test_a_finalizer_under_a_lock_of_the_engine_may_call_backward",
                 name="_claims", within=2)),
    Fault("an interrupt does not change the grad mode", plants_interrupts.mode_set_when_made,
          ByTest(_INTERRUPTS, "test_an_interrupt_at_any_point_of_a_block_ends_it",
                 name="no_grad")),
    Fault("an interrupt ends a walk at once", plants_interrupts.walk_undone_once,
          ByTest(_INTERRUPTS, "test_an_interrupt_at_any_point_of_a_walk_ends_it_at_once")),
    Fault("an input that an op has overwritten cannot be read",
          plants_interrupts.input_taken_behind_the_write,
          ByTest("engine.test_overwrite",
                 "test_an_input_is_readable_after_an_interrupt_only_if_it_is_unchanged",
                 leaf=gt.ones((3, 5), requires_grad=True))),
    Fault("moved statistics are counted as written",
          plants_interrupts.statistics_counted_behind_the_write,
          ByTest(_INTERRUPTS,
                 "test_statistics_that_an_interrupt_leaves_moved_are_counted_as_written",
                 own_op=True)),
    Fault("an interrupted step is whole or not begun",
          plants_interrupts.step_interrupted_between_writes,
          ByTest(_WHOLE, "test_an_interrupted_step_is_whole_or_not_begun", kind="adam")),
    Fault("a step without memory changes nothing",
          plants_interrupts.memory_asked_for_between_writes,
          ByTest(_WHOLE, "test_a_step_without_memory_changes_nothing_and_may_be_tried_again",
                 kind="adam")),
    # stand-ins of NVIDIA's libraries
    Fault("cuBLAS refuses a short leading dimension", plants.short_leading_dimension_taken,
          ByTest(_CUBLAS, "test_gemm_refuses_bad_arguments_and_writes_nothing", name="lda < m")),
    Fault("columns are a leading dimension apart", plants.leading_dimension_ignored,
          ByTest(_CUBLAS, "test_matrices_and_vectors", t="D")),
    Fault("beta = 0 does not read C", plants.beta_zero_reads_c,
          ByTest(_CUBLAS, "test_beta_zero_does_not_read_c", t="D")),
    Fault("operation C is the conjugate transpose", plants.conjugation_forgotten,
          ByTest(_CUBLAS, "test_gemm_in_every_transposition", t="Z")),
    Fault("only the given triangle is read", plants.triangles_exchanged,
          ByTest(_CUSOLVER, "test_eigenvalues_by_every_method", t="D")),
    Fault("a unit diagonal is not read", plants.unit_diagonal_read,
          ByTest(_CUBLAS, "test_triangular_solves_in_every_form", t="D")),
    Fault("GemmEx accepts only documented combinations of types", plants.undocumented_types_taken,
          ByTest(_CUBLAS, "test_gemm_ex_takes_nvidias_rows_and_no_other", compute=68)),
    Fault("products of half precision are summed in float32", plants.half_precision_sums,
          ByTest(_CUBLAS, "test_bfloat16_sums_are_taken_in_float32")),
    Fault("scalars on the device are read in stream order", plants.device_scalars_read_early,
          ByTest(_CUBLAS, "test_device_scalars_are_read_in_the_queue_and_host_scalars_before")),
    Fault("scalars on the host are read at the call", plants.host_scalars_read_late,
          ByTest(_CUBLAS, "test_device_scalars_are_read_in_the_queue_and_host_scalars_before")),
    Fault("cublasSetStream resets the workspace", plants.workspace_kept,
          ByTest(_CUBLAS, "test_handles_streams_and_workspaces")),
    Fault("results of a batch do not overlap", plants.overlapping_batches_taken,
          ByTest(_CUBLAS, "test_strided_and_pointer_batches", t="D")),
    Fault("cuBLASLt's GELU is the tanh form", plants.gelu_by_erf,
          ByTest(_CUBLASLT, "test_epilogues", name="gelu", kind=0)),
    Fault("a ReLU epilogue in row order is refused", plants.any_epilogue_taken,
          ByTest(_CUBLASLT, "test_what_nvidia_refuses_is_refused", name="relu in row order")),
    Fault("gesvdj returns V", plants.factor_not_conjugated,
          ByTest(_CUSOLVER, "test_singular_values_by_every_method", t="Z")),
    Fault("cuSOLVER writes its workspace", plants.workspace_untouched,
          ByTest(_CUSOLVER, "test_lu_and_cholesky_solve", t="D")),
    Fault("cuFFT does not scale", plants.inverse_transform_scaled,
          ByTest(_CUFFT, "test_every_kind_and_rank", kind=0x69, lengths=(4, 5))),
    Fault("an in-place transform pads real rows", plants.padding_in_place_forgotten,
          ByTest(_CUFFT, "test_in_place_real_rows_are_padded")),
    Fault("a generator continues its sequence", plants.offset_of_random_numbers_ignored,
          ByTest(_CURAND, "test_seeds_and_offsets_name_places_of_one_sequence")),
    Fault("min and max propagate NaN", plants.nan_left_out_of_reductions,
          ByTest(_CUB, "test_nan_wins_and_no_elements_give_the_initial_value")),
    Fault("a histogram excludes its last edge", plants.last_edge_counted,
          ByTest(_CUB, "test_the_last_edge_of_a_histogram_is_outside")),
    Fault("a call with a result on the host cannot be captured", plants.host_results_captured,
          ByTest(_CUBLAS, "test_a_result_on_the_host_waits_and_so_forbids_capture")),
    # order between streams, on the host device
    Fault("a reader waits for the writer", plants_streams.reader_does_not_wait,
          ByRaces("exchange")),
    Fault("a writer waits for the readers", plants_streams.writer_forgets_readers,
          ByRaces("exchange")),
    Fault("the last stream that wrote a block is its producer",
          plants_streams.write_not_remembered, ByRaces("exchange")),
    Fault("an event covers only writes before it", plants_streams.event_of_an_earlier_write,
          ByRaces("exchange")),
    Fault("the reader waits, not the producer", plants_streams.producer_waits_for_the_reader,
          ByRaces("exchange")),
    Fault("readers wait for the work of an ended stream", plants_streams.ended_stream_forgotten,
          ByRaces("endings")),
    Fault("an op on memory with unknown users waits for all streams",
          plants_streams.unknown_memory_unordered, ByRaces("interchange")),
    Fault("`wait` makes its own stream wait",
          plants_streams.wait_on_the_current_stream, ByRaces("foreign")),
    Fault("`record` makes an event behind the work of its own stream",
          plants_streams.event_on_the_current_stream, ByRaces("exchange")),
    Fault("`gt.Event.wait` makes the given stream wait",
          plants_streams.users_wait_on_the_current_stream, ByRaces("foreign")),
    Fault("a collective waits for other streams' work on its arrays",
          plants_streams.collective_before_its_arrays, ByRaces("collectives")),
    Fault("a missed deadline is an error where the collective was called",
          plants_streams.deadline_not_raised,
          ByHostTest("distributed.test_nccl", "test_the_deadline_of_one_communicator_only")),
    Fault("a missed deadline ends the collective", plants_streams.collective_not_aborted,
          ByHostTest("distributed.test_nccl", "test_the_deadline_of_one_communicator_only")),
    Fault("the current stream waits for a collective's result",
          plants_streams.collectives_result_not_waited_for, ByRaces("collectives")),
    Fault("a copy to the host waits for the values",
          plants_streams.copied_to_the_host_too_early, ByRaces("memory")),
    Fault("another library's work waits for the array", plants_streams.exported_too_early,
          ByRaces("interchange")),
    Fault("a copy from host memory has read it when the call returns",
          plants_streams.pinned_memory_read_late, ByRaces("loading")),
    Fault("an overwrite of a gradient waits for its readers",
          plants_streams.gradient_overwritten_unordered, ByRaces("backward")),
    Fault("a buffer that an op overwrites is ordered as written",
          plants_streams.written_out_unordered, ByRaces("training")),
    Fault("every use of a block by another stream is noted", plants_streams.use_not_noted,
          ByRaces("foreign")),
    Fault("a free records events behind the users of the block",
          plants_streams.free_without_event, ByRaces("foreign")),
    Fault("a freed block is reused when its events are done",
          plants_streams.event_taken_for_done, ByRaces("foreign")),
    Fault("a stream that claims a retired block waits for its users",
          plants_streams.claimed_without_wait, ByRaces("counting_graphs")),
    Fault("a stream that takes from another one's pool waits for it",
          plants_streams.taken_from_a_stream_unordered, ByRaces("graphs")),
    Fault("a stream that inherits an ended stream's memory waits for its work",
          plants_streams.inherited_without_wait, ByRaces("counting_graphs")),
    Fault("the reuse of a planned place waits for its users", plants_streams.planned_use_not_noted,
          ByRaces("planned")),
    Fault("a replay waits for the writers of its inputs", plants_streams.replay_before_its_inputs,
          ByRaces("graphs")),
    Fault("a replay waits for the readers of its results",
          plants_streams.replay_over_its_readers, ByRaces("captured_training")),
    Fault("a replay is ordered as a write to the older tensors that it writes",
          plants_streams.replay_writes_unordered, ByRaces("graphs")),
    Fault("numbers for a replay are copied behind the replays that read the ones before",
          plants_streams.numbers_copied_unordered, ByRaces("captured_updates")),
    Fault("graphs of one pool replay one after another",
          plants_streams.replays_of_one_pool_at_once, ByRaces("counting_graphs")),
    Fault("a replay waits for the readers of freed results",
          plants_streams.replay_over_freed_results, ByRaces("graphs")),
    Fault("a dropped graph's memory is reused after its last replay",
          plants_streams.graph_memory_freed_too_early, ByRaces("graphs")),
    Fault("a later capture reuses a dropped graph's memory after its last replay",
          plants_streams.graph_memory_captured_without_wait, ByRaces("graphs_in_turn")),
    Fault("memory of a live graph serves no other request",
          plants_streams.graph_memory_shared, ByRaces("captured_training"),
          raises=RuntimeError),  # CUDA's error if a capture waits for another stream
    Fault("a kernel gets its arguments in the order of its parameters",
          plants_streams.kernel_arguments_swapped, ByRaces("training")),
    Fault("a product gets the right leading dimension",
          plants_streams.leading_dimension_of_another_layout, ByRaces("training")),
    Fault("a product is queued on the current stream", plants_streams.product_on_another_stream,
          ByRaces("training")),
    # kernels of the host device
    Fault("comments and literals are not translated as code", plants.comments_are_compiled,
          ByTest(_KERNELS, "test_a_text_is_changed_where_it_must_be_and_keeps_its_lines")),
    Fault("a kernel keeps its launch bound", plants.launch_bounds_are_forgotten,
          ByTest(_KERNELS, "test_a_text_is_changed_where_it_must_be_and_keeps_its_lines")),
    Fault("the dropout of attention is one sequence of numbers over all matrices",
          plants_numerics.dropout_begun_anew,
          ByTest("ops.attention.test_attention", "test_whole_matrices_have_the_bits_of_blocks",
                 shapes=((3, 5, 4, 8), (3, 5, 6, 8), (3, 5, 6, 2)), dropout_p=0.4, turned=False,
                 rng=np.random.default_rng(0))),
    # attention contexts
    Fault("an update writes no context that an open tape has saved",
          plants_context.saved_contexts_written,
          ByTest(_CONTEXT, "test_no_update_writes_what_an_open_tape_has_saved", dtype="float32",
                 device="cpu")),
    Fault("a second run of a checkpoint has the contexts of the first",
          plants_context.newest_context_in_a_second_run,
          ByTest(_CONTEXT, "test_a_checkpoint_has_the_contexts_of_its_first_run", outer=True,
                 nested=False, learned=True), raises=GradientError),
    Fault("a checkpoint updates a context once", plants_context.updated_again_in_a_second_run,
          ByTest(_CONTEXT, "test_a_checkpoint_has_the_contexts_of_its_first_run", outer=True,
                 nested=False, learned=False)),
    Fault("the gradient of a context's strength is a sum in float64",
          plants_context.strength_summed_in_float32,
          ByTest(_CONTEXT, "test_the_gradient_of_strength_is_added_up_in_float64", device="cpu")),
    Fault("after warm-up a context takes memory for results alone",
          plants_context.context_work_arrays_made_anew,
          ByTest(_CONTEXT, "test_after_warm_up_only_results_are_allocated", learned=False,
                 dtype="float32", device="cpu")),
    Fault("a norm is of what a parameter has now", plants_context.versions_not_compared,
          ByTest("nn.test_weight_norm", "test_a_norm_is_computed_once_for_what_is_not_written",
                 write="an assignment", device="cpu")),
    Fault("nothing is kept while other code can write the memory",
          plants_transforms.exports_forgotten,
          ByTest("engine.test_exported_values", "test_a_write_through_an_exported_array_is_seen",
                 name="weight_norm", export="a slice")),
    Fault("values are kept again once the array that left has died",
          plants_transforms.exports_remembered_for_ever,
          ByTest("engine.test_exported_values",
                 "test_values_are_kept_again_once_the_array_has_died", export="a slice")),
    Fault("what is kept is of the same elements", plants_context.views_taken_for_one,
          ByTest("nn.test_weight_norm",
                 "test_derivatives_of_both_orders_and_transforms_are_right")),
    Fault("no garbage collection goes through the records of a step", plants.collector_running,
          ByTest("train.test_trainer", "test_no_collection_starts_while_a_graph_is_recorded",
                 enabled=True)),
]

_HEAD = """# Planted faults

A check that never fails proves nothing. Each row is one deliberate mistake in gtensor and the check
that must fail with it and pass without it; `tests/faults` plants them one by one. Faults of the
programs in `hostcuda/programs.py` are planted only by `pytest --host-cuda`: these programs use
several streams and run through the real CuPy in random orders.

Other planted faults are beside their checks:

| subject | file |
| --- | --- |
| counting of holders | `tests/engine/test_ownership_model.py` |
| CUDA kernels | `tests/kernels/test_kernels_faults.py` |
| CUDA kernels on the host device | `tests/hostcuda/test_kernels_compiler.py` |
| the host device's C++ runtime (slow) | `tests/hostcuda/test_runtime_faults.py` |
| floors | `tests/test_floors.py` |
| the arena | `tests/memory` |

`PYTHONPATH=.:tests python -m faults.table > docs/faults.md` writes this page.

| invariant | planted fault | killed by |
| --- | --- | --- |
"""


def markdown() -> str:
    """The text of `docs/faults.md`."""
    rows = [f"| {f.invariant} | {f.mutation} | {f.killer} |" for f in FAULTS]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
