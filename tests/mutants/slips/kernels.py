"""Kernels: which program of the grid has an effect, the logs of compiled ones, and checks."""

from tests.mutants.slip import Slip

GRID, BOUNDS, LOG_PASS = (
    "extensions/kernels/grid.py",
    "extensions/kernels/bounds.py",
    "extensions/kernels/log_writer.py",
)
LOG_RULES, LOG = "extensions/kernels/log_rules.py", "extensions/kernels/log.py"
TESTS = "tests/extensions/kernels"


def _in(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}/test_{file}.py::test_{name}" for name in names)


SLIPS = (
    Slip(
        "kernels.lane_ahead_of_the_index",
        GRID,
        "for lane in lanes] + position\n",
        "for lane in lanes][::-1] + position\n",
        "Under two `vmap`s the lanes in a record's grid are exchanged.",
        _in("simulated_transformations", "vmap_of_vmap"),
    ),
    Slip(
        "kernels.bounds_of_the_last",
        BOUNDS,
        "jnp.min(positions), jnp.max(positions)",
        "jnp.min(positions), jnp.min(positions)",
        "Only the least of the indices is checked.",
        _in("bounds", "slices"),
    ),
    Slip(
        "kernels.count_of_masked_effects",
        LOG_PASS,
        "return [used + active * np.int32(need_of(written)), count + active]",
        "return [used + np.int32(need_of(written)), count + active]",
        "A log has effects of lanes that are not there.",
        _in("logs", "lanes_of_a_vmap"),
    ),
    Slip(
        "kernels.lowest_words_first",
        LOG_PASS,
        "return [x.astype(jnp.int32), (x >> 32).astype(jnp.int32)]",
        "return [(x >> 32).astype(jnp.int32), x.astype(jnp.int32)]",
        "The halves of numbers of 64 bits are exchanged in a log.",
        _in("logs", "types[64 bits]"),
    ),
    Slip(
        "kernels.tail",
        LOG_RULES,
        "width = COUNTS + capacity + max(map(need_of, inner))",
        "width = COUNTS + capacity",
        "What does not fit is written over what does.",
        _in("log_capacity", "a_log_that_is_full_to_the_last_word"),
    ),
    Slip(
        "kernels.overflow_is_counted",
        LOG,
        "dropped = int(rows[:, 1].sum()) - sum(1 for row in rows for _ in self._effects(row))",
        "dropped = int(rows[:, 1].sum())",
        "The warning counts effects that were not dropped.",
        _in("log_capacity", "overflow_is_counted_and_said"),
    ),
    Slip(
        "kernels.order_of_the_programs",
        "dispatch/runtime/parts.py",
        "in records:\n",
        "in reversed([*records]):\n",
        "The effects of a log come in the reverse order.",
        _in("logs", "grids_of_every_rank"),
    ),
)
