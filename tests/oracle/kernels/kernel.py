"""A Pallas kernel: a block that runs once for each program of a grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.oracle.jax_ import Scope, assign, fold, register, remainder, run_body
from tests.oracle.kernels.blocks import Block
from tests.oracle.language import REGISTERS, STATE, Block_, Expression, State

if TYPE_CHECKING:
    from tests.oracle.source import Source

WHOLE = pl.BlockSpec()


@dataclass(frozen=True)
class Kernel:
    """A kernel whose outputs are folded into `target`.

    A program of the grid begins with the registers of the program before it if the kernel `carries`, and else with
    those ahead of the kernel; after the kernel they are those of the last program. The program before and the last one
    are those of the order in which the grid is visited.
    """

    name: str
    grid: tuple[int, ...]
    dynamic: Expression | None  # how many of the programs along the first axis there are, less one, if data says so
    table: tuple[int, ...]  # of blocks, for each program along the axis of those that have it; or empty
    shift: Expression | None  # how much further each of them stands in the end, if data says so
    inputs: tuple[Block, ...]
    outputs: tuple[Block, ...]
    # Numbers in scratch memory, with what the first program writes there: if another may come first, each program.
    cells: tuple[tuple[str, int], ...]
    closes: tuple[str, ...]  # names of values that the kernel knows
    carries: bool
    keep: bool  # whether the outputs are used
    body: Block_
    target: str
    order: str | int | None = None  # in which its grid is visited: "reverse", or a seed
    # JAX's interpreter for TPUs runs a kernel with several cores or parallel axes, and visits the grid in an unknown
    # order. So its programs share no values, and it has no outputs.
    cores: int = 0
    parallel: bool = False

    @property
    def visits(self) -> bool:
        """Whether its grid is visited in another order than its own."""
        return self.order is not None or bool(self.cores)

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{axis}" for axis in range(len(self.grid)))

    def kinds(self) -> tuple[str, ...]:
        found = ["kernel", f"grid_rank_{len(self.grid)}", *["grid_dynamic"] * (self.dynamic is not None)]
        found += ["table_shifted"] * (self.shift is not None)
        found += [kind for block in (*self.inputs, *self.outputs) for kind in block.kinds()]
        found += ["scratch"] * bool(self.cells) + ["kernel_carries"] * self.carries
        found += ["grid_order"] * (self.order is not None)
        found += [f"kernel_cores_{self.cores}"] * bool(self.cores) + ["kernel_parallel"] * self.parallel
        return (*found, *["kernel_dropped"] * (not self.keep))

    # As Python.

    def python(self, out: Source) -> None:
        entry, indices = out.fresh("entry"), self.indices
        arrays = {block: out.fresh("array") for block in (*self.inputs, *self.outputs)}
        for block, array in arrays.items():
            out.line(f"{array} = {block.python(self.grid)}  # {block.form}{' ' * bool(block.starts)}{block.starts}")
        for cell, _ in self.cells:
            out.line(f"{cell} = [0]  # in scratch memory")
        if self.table:
            shift = "" if self.shift is None else f" + {self.shift.python()}"
            out.line(f"table = [(block{shift}) % {len(self.table)} for block in {self.table}]")
        out.line(f"{entry} = {STATE}")
        sizes = ", ".join(map(str, self.grid))
        if self.dynamic is not None:
            sizes = ", ".join([f"{self.dynamic.python()} % {self.grid[0]} + 1", *map(str, self.grid[1:])])
        sizes = f"({sizes},)" if self.grid else "()"
        names = "".join(f"{index}, " for index in indices)
        options = ", by_lane=True" * (self.shift is not None)
        if self.visits:
            options += f", order={self.order if self.order is not None else 0!r}"
        note = f", {self.cores} cores" * bool(self.cores) + ", parallel" * self.parallel
        with out.block(f"for ({names}) in programs({sizes}{options}):  # {self.name}{note}"):
            for block, array in arrays.items():
                out.line(f"{block.name} = {array}[{block.part(indices, self.grid)}]")
            if not self.carries:
                out.line(f"{STATE} = {entry}")
            for cell, value in self.cells:
                out.line(f"{'' if self.visits else f'if not any(({names})): '}{cell}[0] = {value}")
            for block in self.outputs:
                if block.starts == "fill":
                    out.line(f"{block.name}[...] = 7")
            out.body(self.body)
        if not self.keep:
            out.line(f"{STATE} = {entry}")
            return
        for block in self.outputs:
            out.line(f"{self.target} = fold({arrays[block]}.ravel().tolist(), {self.target})")

    # As JAX.

    def jax(self, scope: Scope, state: State) -> State:
        registers, x = jnp.stack(state[:-1]), jnp.reshape(state[-1], (1,))
        values = jnp.stack([jnp.asarray(scope.names[name], np.int32) for name in self.closes])
        arrays = [block.jax(self.grid, scope, state) for block in (*self.inputs, *self.outputs)]
        inputs = [registers, x, values, *arrays]
        outputs = [registers, x, *arrays[len(self.inputs) :]]
        aliases = {
            3 + len(self.inputs) + number: 2 + number
            for number, block in enumerate(self.outputs)
            if block.starts == "alias"
        }
        if self.carries:
            aliases |= {0: 0, 1: 1}
        table = [self._table(scope, state)] if self.table else []
        *after, x = self._call(
            scope, state, table, inputs, outputs, {at + len(table): to for at, to in aliases.items()}
        )
        if not self.keep:
            return state
        return self._folded(after, x, state)

    def _table(self, scope: Scope, state: State) -> Any:
        table = jnp.stack([np.int32(block) for block in self.table])
        if self.shift is None:
            return table
        return lax.rem(lax.add(table, self.shift.jax(scope, state)), np.int32(len(self.table)))

    def _call(
        self,
        scope: Scope,
        state: State,
        table: list[Any],
        inputs: list[Any],
        outputs: list[Any],
        aliases: dict[int, int],
    ) -> Sequence[Any]:
        blocks = [block.spec(self.grid) for block in (*self.inputs, *self.outputs)]
        grid: tuple[Any, ...] = self.grid
        if self.dynamic is not None:
            grid = (remainder(self.dynamic, grid[0], scope, state) + 1, *grid[1:])
        specs = {
            "grid": grid,
            "in_specs": [WHOLE] * 3 + blocks,
            "out_specs": [WHOLE] * 2 + blocks[len(self.inputs) :],
            "scratch_shapes": [pltpu.SMEM((), np.int32) for _ in self.cells],
        }
        if table:
            specs = {"grid_spec": pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=len(table), **specs)}
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in outputs]
        if self.order is not None:
            specs["grid_order"] = self.order
        if self.cores:
            semantics = ("parallel" if self.parallel else "arbitrary", *("arbitrary",) * (len(self.grid) - 1))
            specs["interpret"] = pltpu.InterpretParams(num_cores_or_threads=self.cores, random_seed=sum(self.grid))
            specs["compiler_params"] = pltpu.CompilerParams(dimension_semantics=semantics)
        call = scope.runner.kernel(
            lambda *refs: self._kernel(scope, refs[len(table) :]),
            out_shape=shapes,
            input_output_aliases=aliases,
            **specs,
        )
        registers, x, *after = call(*table, *inputs)
        return [registers, *after, x]

    def _kernel(self, scope: Scope, refs: Sequence[Any]) -> None:
        rest = iter(refs)
        registers_in, x_in, values = next(rest), next(rest), next(rest)
        names = {name: values[j] for j, name in enumerate(self.closes)}
        names |= {block.name: next(rest) for block in self.inputs}
        for _ in self.outputs:
            next(rest)
        registers, x = next(rest), next(rest)
        names |= {block.name: next(rest) for block in self.outputs}
        cells = {name: next(rest) for name, _ in self.cells}

        def start() -> None:
            for name, value in self.cells:
                cells[name][...] = np.int32(value)

        if self.visits:
            start()
        elif self.cells:
            first = np.bool_(True)
            for axis in range(len(self.grid)):
                first = jnp.logical_and(first, pl.program_id(axis) == 0)
            pl.when(first)(start)
        for block in self.outputs:
            if block.starts == "fill":
                names[block.name][...] = jnp.full(block.shape, 7, np.int32)
        if self.carries:
            registers_in, x_in = registers, x
        state = (*(registers_in[j] for j in range(len(REGISTERS))), x_in[0])
        state = run_body(self.body, dataclasses.replace(scope, names={**names, **cells}), state)
        for j, value in enumerate(state[:-1]):
            registers[j] = value
        x[0] = state[-1]

    def _folded(self, after: Sequence[Any], x: Any, state: State) -> State:
        registers, *arrays = after
        state = (*(registers[j] for j in range(len(REGISTERS))), lax.reshape(x, ()))
        for array in arrays:
            state = assign(state, self.target, fold(jnp.ravel(array), register(state, self.target)))
        return state
