"""All private names of torch that precheck uses, each with what happens where the installed torch lacks it.

No other file uses a private name of torch; `suites/test_house.py` checks this. There are two kinds:

- **Needed.** Nothing can be observed without these. Where one is missing, an ImportError names the installed torch and the tested versions.
- **Replaced.** The comment or docstring of the name says what is done where torch has no such name.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils import _python_dispatch

from precheck import interrupts

if dist.is_available():
    from torch._C import _distributed_c10d as _c10d
    from torch.distributed import distributed_c10d as c10d
else:
    _c10d = c10d = None  # type: ignore[assignment]

Found = TypeVar("Found")
TESTED = "2.9 to 2.15"
"""The versions of torch under which the whole test suite has run: docs/compatibility.md."""

try:  # needed
    from torch.optim.optimizer import _global_optimizer_pre_hooks as _hooks_of_all_optimizers

    DispatchKey, DispatchKeySet = torch._C.DispatchKey, torch._C.DispatchKeySet
    backward_node = torch._C._current_autograd_node  # the backward node that runs on this thread, or None
    _graph_task = torch._C._current_graph_task_id  # -1 outside a backward pass
    NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # what a tensor subclass without operators of its own has
    no_dispatch = torch._C._DisableTorchDispatch  # a context in which no dispatch mode sees an operator
    no_class_code = torch._C.DisableTorchFunctionSubclass  # a context in which no `__torch_function__` of a tensor's class runs
    has_kernel, device_key = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C._dispatch_key_for_device
    without_keys = torch._C._ExcludeDispatchKeyGuard
    set_grad_enabled, next_sequence_number = torch._C._set_grad_enabled, torch._C._autograd._get_sequence_nr  # the latter of the next backward node
    AccumulateGrad = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
    is_transformed = torch._C._functorch.is_functorch_wrapped_tensor  # inside vmap, grad and similar transforms
    OpOverload, OpOverloadPacket = torch._ops.OpOverload, torch._ops.OpOverloadPacket
    CustomOpDef = torch._library.custom_ops.CustomOpDef  # what torch.library.custom_op makes
    CAST = torch.ops.aten._to_copy.default  # what `tensor.to(dtype)` runs
    CONVERSION = torch.nn.Module._apply.__code__  # what `model.to(...)` and its like run
    _MODULE_CODE = torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__  # what calling a module runs
    MODULE_CALLS = frozenset(map(id, _MODULE_CODE))  # by id, since hashing code takes two microseconds
    TorchDispatchMode = _python_dispatch.TorchDispatchMode
    innermost_mode, active_modes = _python_dispatch._get_current_dispatch_mode, _python_dispatch._get_current_dispatch_mode_stack
    tracer = functools.partial(torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY)  # None: no graph is being traced
    modes_on = torch._C._len_torch_dispatch_stack  # how many modes, without the one that handles an op
    without_modes, without_innermost_mode = _python_dispatch._disable_current_modes, _python_dispatch._pop_mode_temporarily
    foreach_norm, foreach_sub = torch._foreach_norm, torch._foreach_sub
    overlapping = torch._debug_has_internal_overlap  # 1: some elements share memory
    set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame  # what torch.compile hangs into Python's calls; returns what was there
    storage_at = torch.UntypedStorage._new_with_weak_ptr  # the storage behind a weak pointer, None where it has been freed
    multiplies_float16 = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)  # whether this CPU does; without the name it does not
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"precheck does not know the internals of torch {torch.__version__} ({error}). It is tested with torch {TESTED}: "
        "install one of these, or a newer precheck."
    ) from error


def written_out(func: Any) -> Callable[..., Any] | None:
    """What flexible attention runs without a compiler: Python code that calls other ops. None for others, which no mode sees."""
    kernels = func.py_kernels if isinstance(func, torch._ops.HigherOrderOperator) and func.name().startswith("flex_attention") else {}
    return kernels.get(DispatchKey.CompositeExplicitAutograd)


def set_cudnn_tf32(allowed: bool) -> None:
    """Sets `torch.backends.cudnn.allow_tf32`, also if torch's test utilities have frozen it. Without the private setter it sets the attribute."""
    getattr(torch._C, "_set_cudnn_allow_tf32", functools.partial(setattr, torch.backends.cudnn, "allow_tf32"))(allowed)


def graph_task() -> int:
    """The unique number of the backward pass that autograd runs on this thread. -1 outside a backward pass."""
    return int(_graph_task())


def in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return bool(_graph_task() != -1)


@interrupts.whole
def nesting() -> int:
    """How many autocast blocks are open here, including those that disable autocast. 0 inside an op that autocast casts for."""
    many: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return many


def address(storage: torch.UntypedStorage) -> int:
    """The address of torch's storage object. It is unique while a weak reference to this storage is held, even if the storage has been freed.
    So what was kept under the address of a living storage, with such a reference, is of this storage."""
    return int(storage._cdata)


def located(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """For each tensor the address of its storage, as in `storage_key`, and the storage's bytes."""
    return [(storage._cdata, storage.nbytes()) for storage in [tensor.untyped_storage() for tensor in tensors]]


def storage_key(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage, the same for all views of it."""
    return int(tensor.untyped_storage()._cdata)


def version(tensor: torch.Tensor) -> int:
    """How often the tensor has been written in place. -1 for an inference tensor, which does not count."""
    return -1 if tensor.is_inference() else tensor._version


def once_an_op(find: Callable[[Any], Found]) -> Callable[[Any], Found]:
    """Caches `find` for each operator. Results are stored by id, since the hash of an operator is slow: it is computed in Python."""
    known: dict[int, tuple[Any, Found]] = {}

    @functools.wraps(find)
    def found(op: Any) -> Found:
        entry = known.get(id(op))
        if entry is None or entry[0] is not op:
            entry = known[id(op)] = op, find(op)
        return entry[1]

    return found


def schema(op: Any) -> Any:
    """The schema of an operator: its name, arguments and what it writes."""
    return op._schema


def overload(op: Any) -> str:
    """The name of an operator's overload, "" for the default one."""
    name: str = op._overloadname
    return name


def kernel_key(op: Any, device: str) -> Any:
    """The dispatch key of the operator's kernel: the composite one, or that for the device. A key without a kernel would crash the process."""
    keys = ("CompositeImplicitAutograd", device_key(device), "CompositeExplicitAutograd")
    return getattr(DispatchKey, next(key for key in keys if has_kernel(op.name(), key)))


def call_kernel(op: Any, key: Any, args: Iterable[Any], kwargs: dict[str, Any]) -> Any:
    """Runs the kernel that is registered for an operator under a dispatch key."""
    return op._op_dk(key, *args, **kwargs)


def sequence_number(node: Any) -> int:
    """The number that a backward node shares with the forward call that made it."""
    number: int = node._sequence_nr()
    return number


def destroy(library: torch.library.Library) -> None:
    """Takes the kernels of a library out of the dispatcher. Without `_destroy` that waits until the library is collected."""
    getattr(library, "_destroy", lambda: None)()


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether anything runs before the optimizer's step that might change a gradient."""
    return bool(optimizer._optimizer_step_pre_hooks or _hooks_of_all_optimizers)


def script_optimized(enabled: bool) -> bool:
    """Switches the optimising executor of TorchScript; returns how it was. A torch without the switch runs scripts as it likes."""
    get, put = (getattr(torch._C, f"_{verb}_graph_executor_optimize", lambda *given: enabled) for verb in ("get", "set"))
    before = bool(get())
    put(enabled)
    return before


def scripts_compiled_anew() -> None:
    """TorchScript forgets what it has compiled for the state of autocast that it is called in. A torch without the list of functions keeps it."""
    for function in getattr(getattr(torch.jit._state, "_python_cu", None), "get_functions", list)():
        function._debug_flush_compilation_cache()


def script_builtin(function: Any, original: Any | None) -> None:
    """Makes TorchScript compile `function` as it compiles `original`, which `function` replaces. None undoes it. A torch without the table cannot
    compile calls of `function`."""
    table: dict[int, str] = getattr(torch.jit._builtins, "_get_builtin_table", dict)()
    table.pop(id(function), None)
    if original is not None and id(original) in table:
        table[id(function)] = table[id(original)]


def generated_modules() -> list[Any]:
    """The Python modules that Inductor has written and loaded in this process, in that order. Empty for a torch without the list."""
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    return list(getattr(cache, "modules", ()))


def inductor() -> Any:
    """Inductor, once something was compiled with it."""
    return sys.modules["torch._inductor"]


# A GradScaler's own state. A disabled scaler has none of it.
def scale_of(scaler: Any) -> Any:
    """The tensor that holds the loss scale; None until the first `scale()`, and for a scaler that is disabled."""
    return getattr(scaler, "_scale", None)


def made_scale(scaler: Any, device: torch.device) -> torch.Tensor:
    """The tensor that holds the loss scale. Makes it on `device` if there is none yet, as the first `scale()` does."""
    if scale_of(scaler) is None:
        scaler._lazy_init_scale_growth_tracker(device)
    scale: torch.Tensor = scaler._scale
    return scale


def found_inf(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the last `unscale_` or `step` found a gradient of that optimizer that is not finite."""
    return any(float(found) > 0 for found in scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values())


# torch.distributed. Where a name is missing, `MEETS` is False: ranks are then watched apart, and what other ranks send is taken as it comes.
MEETS = all(
    hasattr(module, name)
    for module, name in (
        (_c10d, "_create_work_from_future"),
        (_c10d, "_register_process_group"),
        (_c10d, "_unregister_process_group"),
        (c10d, "_get_default_store"),
        (c10d, "_resolve_process_group"),
    )
)


def default_store() -> Any:
    """The store through which the program's ranks communicate at the start."""
    return c10d._get_default_store()


def store_under(name: str, store: Any) -> Any:
    """The part of a store whose keys begin with `name`."""
    return _c10d.PrefixStore(name, store)


def gloo_group(store: Any, name: str, rank: int, size: int, patience: datetime.timedelta) -> Any:
    """Makes a new process group for `size` ranks that share `store`. Functional collectives know it by `name`."""
    prefixed = store_under(name, store)
    group, kind = dist.ProcessGroup(prefixed, rank, size), dist.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, dist.ProcessGroupGloo(prefixed, rank, size, patience))
    group._set_default_backend(kind)
    group._set_group_name(name)  # type: ignore[arg-type]
    _c10d._register_process_group(name, group)  # type: ignore[arg-type]
    return group


def forget_group(group: Any) -> None:
    """Removes a group that `gloo_group` made from torch's register."""
    _c10d._unregister_process_group(group.group_name)


def group_named(name: str) -> Any:
    """The process group that functional collectives know by that name."""
    return c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]


def finished_work(results: list[torch.Tensor]) -> Any:
    """The handle of a finished collective, as operators return it."""
    done: Any = torch.futures.Future()
    done.set_result(results)
    return _c10d._create_work_from_future(done).boxed()  # type: ignore[attr-defined]


def awaited(tensor: torch.Tensor) -> torch.Tensor:
    """Waits for the result of a functional collective, and returns it."""
    return torch.ops._c10d_functional.wait_tensor(tensor)  # type: ignore[no-any-return]


def sharded_class(kind: type) -> type:
    """The original class of a module that FSDP2's `fully_shard` wraps. Where torch does not say, it is the third in the method resolution order."""
    return kind.__mro__[getattr(kind, "_orig_cls_mro_index", 2)]


# The profiler in its older form, which counts the memory that torch's CPU allocator hands out and writes nothing to stderr.
def start_memory_profile() -> None:
    """Starts the recording. Raises RuntimeError if a profiler is running, or if torch has no such profiler."""
    try:
        kinds, begin = torch._C._profiler, torch._C._autograd._enable_profiler_legacy
        config = kinds.ProfilerConfig(kinds.ProfilerState.CPU, False, True, False, False, False, kinds._ExperimentalConfig())
    except AttributeError as error:
        raise RuntimeError(f"torch {torch.__version__} has none that precheck knows: {error}") from error
    begin(config)


def stop_memory_profile() -> list[Any]:
    """Ends the recording. Returns its events, in order within each thread."""
    return list(itertools.chain.from_iterable(torch._C._autograd._disable_profiler_legacy()))
