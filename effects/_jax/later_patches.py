"""The rows of the table of patches that change modules which JAX itself does not import: Pallas, and `checkify`."""

from __future__ import annotations

from collections.abc import Callable

from jax._src.interpreters import ad, batching

from effects._jax.patch import Patch, attribute, entry, lowering, method
from effects._jax.primitives import while_p

Rows = Callable[[], tuple[Patch, ...]]

CHECKIFY = "jax._src.checkify"
KERNELS = "jax._src.pallas.pallas_call"
MESH_KERNELS = "jax._src.pallas.mpmd"

ROWS_OF: dict[str, Rows] = {}
"""By module: the rows that change it, which are made once it has been imported."""


def _of(module: str) -> Callable[[Rows], Rows]:
    return lambda rows: ROWS_OF.setdefault(module, rows)


@_of(CHECKIFY)
def _rows_of_checkify() -> tuple[Patch, ...]:
    from jax._src import checkify

    return (
        Patch(
            "while in checkify",
            (entry(checkify, "error_checks", while_p),),
            "In `checkify`, a `while_loop` whose condition has effects carries its predicate.",
            "JAX evaluates the condition twice in every iteration, once to look for errors and once to decide, so that "
            "effects happen twice.",
            "0.10",
            "JAX carries the predicate itself.",
        ),
    )


@_of(KERNELS)
def _rows_of_kernels() -> tuple[Patch, ...]:
    from jax._src.pallas import hlo_interpreter, pallas_call

    return (
        Patch(
            "effects of kernels",
            (method(pallas_call, "pallas_call_p", "abstract_eval"),),
            "The equation of a `pl.pallas_call` shows the effects that its kernel has, and effects in index maps are "
            "refused. JAX's own callbacks are shown for simulated kernels only.",
            "JAX shows none, so that a kernel whose results are not used is dropped with its effects, and those of "
            "other kernels have no token.",
            "0.10",
            "JAX shows the effects of kernels.",
        ),
        Patch(
            "bounds of kernels",
            (method(pallas_call, "pallas_call_p", "bind"),),
            "With the setting `bounds_checks`, a simulated kernel checks every index and where its blocks begin.",
            "JAX's simulation moves what is outside to the nearest that is inside, without a word.",
            "0.10",
            "JAX's simulation checks bounds.",
        ),
        Patch(
            "vmap of kernels",
            (entry(batching, "fancy_primitive_batchers", pallas_call.pallas_call_p),),
            "A kernel with effects runs in every lane of a `vmap`, also where no operand differs, and knows which lane "
            "it is.",
            "JAX leaves a kernel without mapped operands as it is, so that its effects happen once for all lanes.",
            "0.10",
            "JAX batches what has effects also where no argument has lanes.",
        ),
        Patch(
            "derivatives of kernels",
            (entry(ad, "primitive_jvps", pallas_call.pallas_call_p),),
            "In a kernel with effects, inputs that are not differentiated have tangents of zeros.",
            "JAX gives every input a block for its tangent, and fails where one has none, as the lane of a `vmap`.",
            "0.10",
            "JAX differentiates kernels with regard to some of their inputs.",
        ),
        Patch(
            "lowering of compiled kernels",
            (lowering(pallas_call.pallas_call_p),),
            "A compiled kernel with effects writes them to a log, from which they are recorded after it.",
            "A compiled kernel cannot call the host, and JAX's compilers of kernels know no effects of other "
            "libraries.",
            "0.10",
            "JAX's compilers of kernels let libraries lower effects of theirs.",
        ),
        Patch(
            "grids of simulated kernels",
            (attribute(hlo_interpreter, "pallas_call_hlo_interpret"),),
            "In a simulated kernel, effects know the index of their program in the grid, `pl.program_id` may stand in "
            "loops and branches, and `fx.pallas_call` says in which order the grid is visited.",
            "The simulation turns the grid into a loop, in which nothing says whose effects these are.",
            "0.10",
            "JAX's simulation has the program's index in all bodies.",
        ),
    )


@_of(MESH_KERNELS)
def _rows_of_mesh_kernels() -> tuple[Patch, ...]:
    from jax._src.pallas import mpmd

    return (
        Patch(
            "vmap of kernels over meshes",
            (entry(batching, "fancy_primitive_batchers", mpmd.mpmd_map_p),),
            "The same for kernels over a mesh, which are called for one lane after the other where no operand differs.",
            "They are of another primitive.",
            "0.10",
            "JAX batches what has effects also where no argument has lanes.",
        ),
        Patch(
            "lowering of kernels over meshes",
            (lowering(mpmd.mpmd_map_p),),
            "The same for kernels over a mesh, such as those of `plgpu.kernel`.",
            "They are of another primitive.",
            "0.10",
            "JAX's compilers of kernels let libraries lower effects of theirs.",
        ),
    )
