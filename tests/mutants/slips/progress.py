"""Progress bars."""

from tests.mutants.slip import Slip

LOOPS = "tests/extensions/progress/test_loops.py"
PROGRESS = "tests/extensions/progress/test_progress.py"

SLIPS = (
    Slip(
        "progress.ahead_of_the_loop",
        "extensions/progress/loops.py",
        "[done] = add_dependency([lax.stop_gradient(leaf) for leaf in leaves], [done])",
        "pass",
        "A bar says steps that have not happened yet.",
        (f"{LOOPS}::test_step_is_said_when_unordered_functions_have_returned",),
    ),
    Slip(
        "progress.newest_of_all_devices",
        "effects/_model/record.py",
        "newest[device, bytes(",
        "newest[0, bytes(",
        "A device's bar does not come to its end.",
        (f"{PROGRESS}::test_newest_of_each_device_is_shown",),
    ),
    Slip(
        "progress.newest_of_all_lanes",
        "effects/_model/record.py",
        "if site.mask is not None else (0, 0)",
        "if False else (0, 0)",
        "The bar of the slowest lane ends below its end.",
        (f"{PROGRESS}::test_newest_of_the_same_lanes_is_shown",),
    ),
    Slip(
        "progress.slowest_of_those_that_come_together",
        "extensions/progress/bars.py",
        "else {**self.lanes, **lanes}",
        "else {**lanes}",
        "A bar is full when the first of its lanes is.",
        ("tests/extensions/progress/test_bars.py::test_lane_that_is_set_back_begins_the_bar_anew",),
    ),
    Slip(
        "progress.waits_for_the_one_that_draws",
        "extensions/progress/bars.py",
        "if not self._draws.acquire(blocking=False):",
        "if not self._draws.acquire():",
        "An output that runs a program waits for the thread that waits for it.",
        (f"{PROGRESS}::test_output_that_runs_programs_may_show_bars",),
    ),
)
