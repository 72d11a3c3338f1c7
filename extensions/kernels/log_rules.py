"""Compiled kernels: their effects go into a log, and the log is one record behind the kernel.

The kernel with its log is a primitive of its own until it is lowered, since only then it is known for which device the
kernel is compiled, and so where the log lies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._jax import kernel_logs, pallas
from effects._model.callback import HostCall
from effects._model.content import HandlerContent
from effects._model.filter import LOGGER
from effects._model.operand import Operand, flat_arguments
from effects._model.site import Site
from effects._model.where import Where
from effects.extensions.kernels.api import DEFAULT_CAPACITY
from effects.extensions.kernels.grid import LANES
from effects.extensions.kernels.log import COUNTS, KernelLog, grown, need_of, order_of
from effects.extensions.kernels.log_writer import LogWriter
from effects.lowering.holders import conversion
from effects.lowering.rewrite import rewritten, with_jaxprs
from effects.lowering.summary import summarize

MSG_AWAITED = (
    "The {what} `{name}` at {where} gives results to a kernel that is {how}. What such a kernel's effects record is "
    "read when it is over. Simulate the kernel with `interpret=True`, or take the value out of the kernel and call it "
    "there."
)
MSG_DYNAMIC_GRID = (
    "The kernel `{kernel}` at {where} has effects and a grid whose size is known only when it runs, and is {how}. Each "
    "program of the grid needs room of its own for its effects. Give the grid sizes that are known while tracing, or "
    "simulate the kernel with `interpret=True`."
)
COMPILED = "compiled for a device"
SIDE_BY_SIDE = "simulated with several cores or a parallel axis, so that JAX runs its programs in threads or shuffled"
"""The two ways in which a kernel may have no order for calls of the host."""

MSG_CAPACITY = (
    "The effect `{effect}` at {where} takes {need} words of 32 bits, and the log of the kernel `{kernel}` has room for "
    "{capacity} in each program of the grid. An effect is written as a whole. Record less of the array, or write "
    "`fx.pallas_call(..., log_capacity={need})`."
)
MSG_TOO_LARGE = (
    "The log of the kernel `{kernel}` at {where} would take {size} bytes: {words} words for each of {programs} "
    "programs. A log has at most {most}. Record less, or give `fx.pallas_call` a smaller "
    "`log_capacity`."
)
MSG_MOSAIC_GPU = (
    "The effect `{effect}` at {where} is in a kernel that is compiled by Mosaic GPU. Kernels with effects are compiled "
    "by Triton and for TPUs. Compile it by Triton, with the `compiler_params` of `jax.experimental.pallas.triton`, or "
    "simulate it with `interpret=True`."
)

MSG_LEFT_TO_JAX = (
    "`{effect}` at {where} is in a kernel that is compiled for a device, and has no place in the order of the program: "
    "the kernel has no log that takes it. It runs on the device as under `jax.jit`. Print fewer values there, or "
    "scalars, for order."
)

_MOST = 1 << 31
"""Bytes that a log may have: JAX counts them in 32 bits."""


@dataclasses.dataclass(frozen=True)
class LogOptions:
    """The options of a kernel's log, from the kernel's call."""

    capacity: int = DEFAULT_CAPACITY  # words in each program
    grows: bool = True  # True if it gets more room after an overflow
    takes_largest: bool = False  # True if any single effect of the kernel fits, whatever the capacity
    how: str = COMPILED
    leaves_awaited: bool = False  # True if awaited effects stay in the kernel, as in a simulated one


logged_kernel_p: _jax.Primitive = _jax.Primitive("logged_kernel")
logged_kernel_p.multiple_results = True
"""(*operands) -> (*results, log): a kernel without effects, whose last result has the records of the effects."""


def log_kernel(
    args: Sequence[Any],
    params: dict[str, Any],
    options: LogOptions = LogOptions(),
    bind_rest: Callable[[dict[str, Any]], Sequence[Any]] | None = None,
) -> tuple[list[Any], list[tuple[Site, list[Any]]]]:
    """Binds a kernel whose effects go into a log.

    Args:
        args: The kernel's operands.
        params: Its parameters.
        options: The options of the log, from the kernel's call.
        bind_rest: Binds a simulated kernel with these parameters, which keeps effects outside of the log, or JAX's own,
            by which its interpreter calls the host; by default like any kernel.

    Returns:
        The kernel's results, and the records that its effects have become, each as a site and operands. There is one
        for each order that the effects have.
    """
    kernel, grid = kernel_logs.kernel_name(params), pallas.grid_of_kernel(params)
    index = tuple(kernel_logs.grid_index_of_kernel(params, LANES))
    plan = plan_log(params["jaxpr"], kernel, grid, index, options)
    shape = {"sites": plan.sites, "capacity": plan.content.capacity, "width": plan.width}
    if options.how == SIDE_BY_SIDE or (
        options.leaves_awaited and summarize(params["jaxpr"]).sites != logged_sites(params["jaxpr"])
    ):
        rest = _with_log(params, kernel_logs.SIMULATION, **shape)
        *outs, log = pallas.pallas_call_p.bind(*args, **rest) if bind_rest is None else bind_rest(rest)
        log = jax.lax.squeeze(log, [1])
    else:
        *outs, log = logged_kernel_p.bind(*args, **shape, **params)
    lanes = pallas.named_inputs(params, LANES)[::-1]  # as in the index
    return outs, plan.records([log, *(args[at] for at, axis in zip(lanes, index, strict=False) if axis is None)])


@dataclasses.dataclass(frozen=True)
class LogPlan:
    """The layout of a kernel's log."""

    sites: tuple[Site, ...]  # the kernel's sites, by number
    content: KernelLog
    width: int  # words per row
    where: Where  # the user's line that calls the kernel

    def records(self, operands: list[Any]) -> list[tuple[Site, list[Any]]]:
        """The records that the log becomes: one for each order that the effects have."""
        firsts = {order_of(site.effect): site.effect for site in reversed(self.sites)}
        leaves = tuple(Operand(x.shape, np.dtype(x.dtype), np.dtype(x.dtype)) for x in operands)
        tree = flat_arguments(len(leaves))
        return [(Site(effect, self.content, leaves, tree, self.where), operands) for effect in firsts.values()]


def plan_log(
    jaxpr: Any,
    kernel: str,
    grid: tuple[int, ...] | None,
    index: tuple[int | None, ...],
    options: LogOptions,
) -> LogPlan:
    """Plans the log of a kernel. Raises if it cannot have one."""
    if options.leaves_awaited:
        sites = tuple(sorted(logged_sites(jaxpr), key=lambda site: site.id))
    else:
        sites = tuple(sorted(summarize(jaxpr).sites, key=lambda site: site.id))
        _refuse_results(sites, options.how)
    where = sites[0].where if (frame := _jax.user_frame()) is None else Where(*frame)
    if grid is None:
        raise errors.unsupported(MSG_DYNAMIC_GRID.format(kernel=kernel, where=where, how=options.how))
    inner = tuple(_in_grid(site, len(index)) for site in sites)
    capacity = _capacity(kernel, inner, options, _MOST // max(4 * math.prod(grid), 1))
    width = COUNTS + capacity + max(map(need_of, inner))  # with room for one overflowing effect
    if (size := math.prod(grid) * width * 4) >= _MOST:
        shown = {"kernel": kernel, "where": where, "size": size, "words": width, "programs": math.prod(grid)}
        raise errors.value_error(MSG_TOO_LARGE.format(most=_MOST - 1, **shown))
    return LogPlan(sites, KernelLog(kernel, inner, grid, index, capacity, options.grows), width, where)


def logged_sites(jaxpr: Any) -> frozenset[Site]:
    """The sites of the effects for which a kernel does not wait."""
    return frozenset(site for site in summarize(jaxpr).sites if not _is_awaited(site))


def _is_awaited(site: Site) -> bool:
    """Returns True if a kernel waits at this site for the host, or for a handler of the user's."""
    return site.results is not None or isinstance(site.content, HandlerContent)


def _refuse_results(sites: Sequence[Site], how: str) -> None:
    """Raises if a kernel would wait for the host, or for a handler of the user's."""
    for site in sites:
        if _is_awaited(site):
            what = "callback" if isinstance(site.content, HostCall) else "custom call"
            raise errors.unsupported(MSG_AWAITED.format(what=what, name=site.content.title, where=site.where, how=how))


def _in_grid(site: Site, rank: int) -> Site:
    """The site of the records that a kernel's site becomes, with their place in the grid."""
    _, site = site.without_idle_mask([None])
    _, site = site.with_hidden([None], "grid", np.zeros(rank, np.int32))
    return site


def _capacity(kernel: str, sites: tuple[Site, ...], options: LogOptions, most: int) -> int:
    """The number of words for the effects of a program. A log grows to `most` words a program at most."""
    largest = max(sites, key=need_of)
    capacity = max(options.capacity, need_of(largest)) if options.takes_largest else options.capacity
    if (need := need_of(largest)) <= capacity:
        needed = grown.get((kernel, sites), 0) if options.grows else 0
        room = 1 << (needed - 1).bit_length() if needed > capacity else 0  # a little more suffices the next time
        return max(capacity, min(room, most - COUNTS - need - 1))
    shown = {"kernel": kernel, "need": need, "capacity": capacity}
    raise errors.value_error(MSG_CAPACITY.format(effect=largest.effect, where=largest.where, **shown))


@logged_kernel_p.def_abstract_eval
def _logged_kernel_abstract_eval(
    *avals: Any, sites: tuple[Site, ...], capacity: int, width: int, **params: Any
) -> list[Any]:
    outs, _ = pallas.pallas_call_p.abstract_eval(*avals, **params)
    programs = math.prod(pallas.grid_of_kernel(params) or ())
    return [*outs, _jax.per_device(_jax.ShapedArray((programs, width), np.int32))]


def leave_to_jax(eqn: Any, args: Sequence[Any], site: Site) -> Sequence[Any]:
    """Binds a kernel all of whose effects are JAX's own callbacks as JAX does, and says so in the log."""
    LOGGER.warning(MSG_LEFT_TO_JAX.format(effect=site.effect.name, where=site.where))
    with pallas.inside_meshes(eqn.params):
        restored = conversion().restore(eqn)
    return _jax.bind(restored, args)


def _logged_kernel_lowering(
    ctx: Any, *operands: Any, sites: tuple[Site, ...], capacity: int, width: int, **params: Any
) -> Any:
    target = kernel_logs.kernel_target(ctx, params)
    takes_any = target == kernel_logs.TRITON or (
        target == kernel_logs.MOSAIC_TPU and not any(leaf.shape for site in sites for leaf in site.operands)
    )
    if not takes_any and all(site.origin for site in sites) and not pallas.is_simulated(params):
        like = _jax.closed_jaxpr(params["jaxpr"])
        bound = _jax.trace_to_jaxpr(lambda *args: pallas.pallas_call_p.bind(*args, **params), ctx.avals_in, like)

        def call_jaxs(*args: Any) -> list[Any]:
            return [*leave_to_jax(bound.eqns[0], args, sites[0]), jax.numpy.zeros(ctx.avals_out[-1].shape, "int32")]

        return _jax.mlir.lower_fun(call_jaxs)(ctx, *operands)
    if target == kernel_logs.MOSAIC_GPU:
        raise errors.unsupported(MSG_MOSAIC_GPU.format(effect=sites[0].effect, where=sites[0].where))
    with_log = _with_log(params, target, sites, capacity, width)

    def call(*args: Any) -> list[Any]:
        *outs, log = pallas.pallas_call_p.bind(*args, **with_log)
        return [*outs, jax.lax.squeeze(log, [1])]

    return _jax.mlir.lower_fun(call)(ctx, *operands)


def _with_log(
    params: dict[str, Any], target: str, sites: tuple[Site, ...], capacity: int, width: int
) -> dict[str, Any]:
    """The parameters of a kernel that writes the effects of these sites into a log, its last output."""
    kernel, writer = _jax.closed_jaxpr(params["jaxpr"]), LogWriter(sites, capacity, target)

    def run(log: Any, *references: Any) -> list[Any]:
        body = _with_reductions_of_integers(kernel) if target == kernel_logs.TRITON else kernel
        return writer.write(body, log, references)

    return kernel_logs.with_log(params, width, target, run)


def _with_reductions_of_integers(jaxpr: Any) -> Any:
    """A jaxpr whose reductions of booleans, which JAX lowers to no code of Triton's, reduce integers."""
    reductions = {jax.lax.reduce_and_p: jax.lax.reduce_min, jax.lax.reduce_or_p: jax.lax.reduce_max}

    def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
        if (reduce := reductions.get(eqn.primitive)) is None or operands[0].dtype != bool:
            return _jax.bind(with_jaxprs(eqn, _with_reductions_of_integers), operands)
        return [reduce(operands[0].astype(np.int32), eqn.params["axes"]) != 0]

    return rewritten(jaxpr, apply)


_jax.mlir.register_lowering(logged_kernel_p, _logged_kernel_lowering, cacheable=False)
