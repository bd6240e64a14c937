"""Rows of collectives, under their names in torch.distributed and in its functional form."""

from __future__ import annotations

from precheck.ops.spec import Kind, OpSpec, each

_SUMS = OpSpec("", Kind.COLLECTIVE, across="sums")
_COPIES = OpSpec("", Kind.COLLECTIVE, across="copies")

ROWS = (
    *each("c10d::allreduce c10d::allreduce_coalesced c10d::reduce_scatter c10d::_reduce_scatter_base c10d::reduce_scatter_tensor_coalesced "
          "_c10d_functional::all_reduce _c10d_functional::all_reduce_coalesced _c10d_functional::reduce_scatter_tensor "
          "_c10d_functional::reduce_scatter_tensor_coalesced _c10d_functional::reduce_scatter_tensor_out "
          "_c10d_functional_autograd::reduce_scatter_tensor", _SUMS),
    *each("c10d::broadcast c10d::allgather c10d::_allgather_base c10d::allgather_into_tensor_coalesced c10d::allgather_coalesced "
          "c10d::alltoall_base c10d::scatter _c10d_functional::broadcast _c10d_functional::all_gather_into_tensor "
          "_c10d_functional::all_gather_into_tensor_out _c10d_functional::all_gather_into_tensor_coalesced _c10d_functional::all_to_all_single "
          "_c10d_functional_autograd::all_gather_into_tensor _c10d_functional_autograd::all_to_all_single", _COPIES),
)  # fmt: skip
"""Collectives whose results all ranks receive. Messages from one rank to another and `reduce` are not included."""
