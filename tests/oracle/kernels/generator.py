"""Random programs with kernels."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracle.cases import generate_case
from tests.oracle.generator import Generator
from tests.oracle.kernels.blocks import FORMS, Block
from tests.oracle.kernels.kernel import Kernel
from tests.oracle.kernels.statements import (
    BlockPrint,
    Element,
    GridPrint,
    Loop,
    MaskedSum,
    NumPrograms,
    ProgramId,
    Scoped,
    Store,
    When,
)
from tests.oracle.language import FEATURES, Block_, Case, Expression, Program, Statement, is_native, statements
from tests.oracle.place import Draw, Place
from tests.oracle.statements.callback import Callback
from tests.oracle.statements.calls import Call
from tests.oracle.statements.control import While
from tests.oracle.statements.state import OptimizationBarrier

KERNEL_FEATURES = FEATURES - {"grad", "filters", "switches", "async", "native_fails"} | {"grid_order", "cores"}
"""What programs with kernels may have besides. JAX differentiates a kernel forward only, and asynchronous operations in
one are refused."""


@dataclass(frozen=True)
class KernelPlace(Place):
    """Where a statement of a program with kernels is generated."""

    kernel: str = ""  # the kernel around
    grid: tuple[int, ...] = ()
    is_dynamic: bool = False  # whether its first axis is
    blocks: tuple[Block, ...] = ()  # that may be read
    outputs: tuple[Block, ...] = ()  # that may be written
    apart: bool = False  # whether a `vmap` in the kernel is around
    scoped: bool = False  # whether a `run_scoped` is around

    def inside_predicate(self, *values: str) -> KernelPlace:
        """In a kernel a predicate is one number, whatever lanes are around."""
        inner: Any = self.inside(*values) if self.kernel and not self.apart else super().inside_predicate(*values)
        return inner

    def inside_vmap(self, lane: str, is_known: bool) -> KernelPlace:
        inner: Any = super().inside_vmap(lane, is_known)
        return dataclasses.replace(inner, apart=bool(self.kernel))

    def without_refs(self, *, may_make: Iterable[str] = ()) -> KernelPlace:
        inner: Any = super().without_refs(may_make=may_make)
        return dataclasses.replace(inner, blocks=(), outputs=())

    def inside_kernel(self, name: str, grid: tuple[int, ...], is_dynamic: bool, **parts: Any) -> KernelPlace:
        depth = max(2, self.depth - 1)
        return dataclasses.replace(
            self, depth=depth, may_make=frozenset(), kernel=name, grid=grid, is_dynamic=is_dynamic, **parts
        )


class KernelGenerator(Generator):
    """One program with kernels."""

    place = KernelPlace

    def __init__(self, draw: Draw, prefix: str, features: frozenset[str], failure: str):
        super().__init__(draw, prefix, features, failure)
        self.ahead: list[Callable[[Place], Statement]] = []  # what the next blocks begin with, each inside of the last

    def program(self, size: int) -> Program:
        """A program with a kernel at least, which stands in whatever may be around one."""
        made = super().program(size)
        self.left = 4
        lanes = [self.vmap] * self.draw.choice((0, 1, 0, 2))
        around = self.draw.choice(
            ([], [], [self.cond], [self.while_], [self.scan], [self.fori], [self.switch], [self.wrapped], [self.map])
        )
        self.ahead = [*lanes, *around, self.kernel]
        [first] = self.block(self.place(depth=4), 0)[:1]
        return dataclasses.replace(made, body=(first, *made.body))

    def block(self, place: Place, most: int = 3, effect: bool = False) -> Block_:
        first = (self.ahead.pop(0)(place),) if self.ahead else ()
        return (*first, *super().block(place, most, effect and not first))

    def leaves_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        if not place.kernel:
            return self.leaves
        # Handlers of custom calls are given buffers of the device.
        without = (self.native, self.native_unordered, self.apart, self.optimization_barrier)
        leaves = [leaf for leaf in self.leaves if leaf not in without]
        leaves += [*[self.grid_print] * 5, self.grid_print_unordered, self.pallas_print]
        if place.outputs:
            leaves += [self.store] * 5
        if place.blocks:
            leaves += [self.block_print] * 2
        return leaves

    def first_leaves_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        more = [*[self.grid_print] * 3, self.pallas_print] if place.kernel else []
        return [*super().first_leaves_at(place), *more]

    def nests_at(self, place: Any) -> Sequence[Callable[[Any], Statement]]:
        if not place.kernel:
            return [*self.nests, *[self.kernel] * 6]
        without = (self.solve, self.ref_block)
        nests = [nest for nest in self.nests if nest not in without]
        return [*nests, *[self.when] * 4, *[self.loop] * 2, *[self.scoped] * 3]

    def callable_from(self, place: Any) -> list[str]:
        names = super().callable_from(place)
        if not place.kernel:
            return names
        unfit: set[str] = set()
        for function in self.functions:
            for s in statements(function):
                native = is_native(getattr(s, "kind", ""))
                if (
                    native
                    or isinstance(s, Kernel | OptimizationBarrier)
                    or (isinstance(s, Call) and s.function in unfit)
                ):
                    unfit.add(function.name)
        return [name for name in names if name not in unfit]

    def operands_place(self, place: Any, kind: str) -> Any:
        return place if place.kernel and not place.apart else super().operands_place(place, kind)

    def atom(self, place: Any) -> Expression:
        if place.kernel and place.state and self.draw.integer(0, 1):
            kind = self.draw.integer(0, 3)
            if place.blocks and kind > 1:
                return self.element(place, self.draw.choice(place.blocks))
            if place.blocks and kind == 1:
                block = self.draw.choice(place.blocks)
                if len(block.shape) == 1:
                    return MaskedSum(block.name, block.shape[0], super().atom(place))
            if place.grid:
                axis = self.draw.integer(0, len(place.grid) - 1)
                if kind == 0 and not (place.is_dynamic and axis == 0):
                    return NumPrograms(axis, place.grid[axis])
                return ProgramId(f"{place.kernel}_{axis}", axis)
        return super().atom(place)

    def element(self, place: Any, block: Block) -> Element:
        return Element(block.name, block.shape, super().atom(place))

    # In kernels

    def grid_print(self, place: Any, form: str = "ordered") -> Statement:
        return GridPrint(form, self.label(), self.operands(place))

    def grid_print_unordered(self, place: Any) -> Statement:
        return self.grid_print(place, "unordered")

    def pallas_print(self, place: Any) -> Statement:
        operands = tuple(self.expression(place) for _ in range(self.draw.choice((1, 2, 0))))
        return GridPrint("pallas", self.label(), operands)

    def block_print(self, place: Any) -> Statement:
        block = self.draw.choice(place.blocks)
        return BlockPrint(self.label(), block.name, len(block.shape) == 1)

    def store(self, place: Any) -> Statement:
        return Store(self.element(place, self.draw.choice(place.outputs)), self.expression(place))

    def when(self, place: Any) -> Statement:
        return When(self.less(place), self.block(place.inside_predicate(), 3, effect=True))

    def loop(self, place: Any) -> Statement:
        variable = self.variable("i")
        trips = self.draw.choice((self.expression(place), self.draw.integer(0, 3)))
        return Loop(variable, trips, 4, self.block(place.inside_predicate(variable)))

    def wrapped(self, place: Any) -> Statement:
        # JAX's simulation fails for a function in a `run_scoped` that uses what is outside of that.
        return super().wrapped(place.without_refs() if place.scoped else place)

    def scoped(self, place: Any) -> Statement:
        if place.apart:
            return self.wrapped(place)
        cell = self.variable("m")
        inner = dataclasses.replace(place.inside(), refs=(*place.refs, cell), scoped=True)
        return Scoped(cell, self.expression(place), (*self.block(inner), self.write(inner)), self.register())

    def while_(self, place: Any) -> Statement:
        made: Any = super().while_(dataclasses.replace(place, outputs=()) if place.kernel else place)
        if not place.kernel or made.test or not self.draw.integer(0, 1):
            return made
        test = (self.grid_print(dataclasses.replace(place.inside(), refs=())),)
        return While(made.variable, test, made.condition, made.limit, made.body, made.holds)

    # The kernel itself

    def kernel(self, place: Any) -> Statement:
        name = self.variable("p")
        rank = self.draw.choice((1, 2, 1, 0, 2, 3))
        grid = tuple(self.draw.choice((2, 3, 1) if rank < 3 else (2, 1)) for _ in range(rank))
        # Lanes whose grids have different sizes, or whose tables differ, come one after the other in a loop.
        dynamic = self.expression(place) if grid and self.draw.integer(0, 4) == 4 else None
        table_of = self.draw.integer(0, rank - 1) if rank and dynamic is None and self.draw.integer(0, 2) == 2 else None
        count = grid[table_of] if table_of is not None else 0
        table = tuple(self.draw.integer(0, count - 1) for _ in range(count))
        shift = self.expression(place) if table and self.draw.integer(0, 1) else None

        def block(output: bool) -> Block:
            forms = [form for form in FORMS if FORMS[form].axes <= rank and (form != "table" or table)]
            form = self.draw.choice(forms)
            axes = list(range(rank))
            chosen = tuple(axes.pop(self.draw.integer(0, len(axes) - 1)) for _ in range(FORMS[form].axes))
            if form == "table" and table_of is not None:
                chosen = (table_of,)
            starts = self.draw.choice(("alias", "fill")) if output else ""
            # What no program writes is not said.
            if starts == "fill" and (form == "table" or dynamic is not None):
                starts = "alias"
            return Block(self.variable("o" if output else "u"), form, chosen, self.atom(place), starts)

        cores, parallel = 0, False
        if "cores" in self.features and grid and not place.lanes and dynamic is None and self.draw.integer(0, 2) == 2:
            cores, parallel = self.draw.choice(((2, False), (2, True), (1, True), (3, True)))
        inputs = tuple(block(False) for _ in range(self.draw.choice((1, 2, 0))))
        outputs = tuple(block(True) for _ in range(0 if cores else self.draw.choice((1, 1, 2, 0))))
        cells = tuple((self.variable("m"), self.draw.integer(0, 9)) for _ in range(self.draw.choice((0, 1, 2))))
        inner = place.inside_kernel(
            name,
            grid,
            dynamic is not None,
            refs=tuple(cell for cell, _ in cells),
            blocks=(*inputs, *outputs),
            outputs=outputs,
        )
        self.left = max(self.left, 3)
        body = self.block(inner, 4, effect=True)
        carries, keep = bool(self.draw.integer(0, 1)), bool(self.draw.choice((1, 1, 1, 0)))
        if not any(b.form == "table" for b in (*inputs, *outputs)):
            table, shift = (), None
        order = None
        # JAX's interpreter for TPUs has no masked loads, and no `jax.checkpoint` of what reads a reference.
        refused = any(word in repr(body) for word in ("MaskedSum", "'remat'"))
        if cores and not refused and self._may_be_reordered(body, waits=False):
            carries, keep = False, False
        elif "grid_order" in self.features and not place.lanes and dynamic is None and self._may_be_reordered(body):
            cores, parallel = 0, False
            order = self.draw.choice((None, None, "reverse", self.draw.integer(0, 9)))
        else:
            cores, parallel = 0, False
        return Kernel(
            *(name, grid, dynamic, table, shift, inputs, outputs, cells, ("n", *place.values[1:])),
            *(carries, keep, body, self.register(), order, cores, parallel),
        )

    def _may_be_reordered(self, body: Block_, waits: bool = True) -> bool:
        """Not where a failure ends the kernel, whose log is lost then. `waits`: whether it may wait for callbacks."""
        functions = {function.name: function for function in self.functions}
        every, called = [*statements(body)], set()
        for s in every:
            if isinstance(s, Call) and s.function not in called:
                called.add(s.function)
                every += statements(functions[s.function])
        callbacks = [s for s in every if isinstance(s, Callback)]
        return not any(s.fails_at or (s.awaited and not waits) for s in callbacks)


def case_number(seed: int, number: int) -> Case:
    """Case `number` of the bulk run with `seed`: the same on every machine."""
    return generate_case(random.Random(f"kernels:{seed}:{number}"), KERNEL_FEATURES, KernelGenerator, (2, 8))
