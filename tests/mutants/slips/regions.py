"""Regions: each device counts for itself, and the order is by index and then by device."""

from tests.mutants.slip import Slip

REGION = "dispatch/native/order/region.cc"
ORDER = "dispatch/native/order/release_order.cc"
NATIVE = "tests/native/region_test.cc"
RANDOM = f"{NATIVE}::test_random_deliveries_leave_by_place_and_device"
REGIONS = "tests/lowering/regions"

SLIPS = (
    Slip(
        "regions.left",
        REGION,
        "return standing.has_left && static_cast<uint32_t>(standing.index) == standing.last;",
        "return standing.has_left;",
        "Records of a device that has left and that have not come yet are not waited for.",
        (RANDOM,),
    ),
    Slip(
        "regions.begins",
        ORDER,
        "region->second.begins_at(sequence.next)) {",
        "sequence.regions.size() != 0) {",
        "Records of a region leave before those that stand ahead of it.",
        (f"{NATIVE}::test_region_waits_for_what_comes_before",),
    ),
    Slip(
        "regions.all_are_wrong",
        "lowering/control_flow.py",
        "mask_effects(ends_all, active, args)",
        "mask_effects(ends_all, active | True, args)",
        "A device ends the program where another one is wrong.",
        (f"{REGIONS}/test_error_if.py::test_error_if",),
    ),
    Slip(
        "regions.asks_where_not_all_come",
        "lowering/regions.py",
        "return in_region()._replace(all_come=False)",
        "return in_region()",
        "Devices ask each other in a branch that not all of them take: a deadlock.",
        (f"{REGIONS}/test_error_if.py::test_devices_ask_each_other_whether_one_ends_the_program",),
    ),
    Slip(
        "regions.goes_on_where_another_is_wrong",
        "dispatch/runtime/replay.py",
        "raise _EndedElsewhere(call.without_lanes(site.where))",
        "pass",
        "Devices that have nothing wrong go on, and wait in a collective for one that has ended.",
        (f"{REGIONS}/test_error_if.py::test_beside_a_branch",),
    ),
)
