"""Regions: each device counts for itself, and the order is by index and then by device."""

from tests.mutants.slip import Slip

RULE = "lowering/rules/shard_map.py"
REGION = "dispatch/native/order/region.cc"
ORDER = "dispatch/native/order/release_order.cc"
NATIVE = "tests/native/region_test.cc"
RANDOM = f"{NATIVE}::test_random_deliveries_leave_by_place_and_device"
REGIONS = "tests/lowering/regions"

SLIPS = (
    Slip(
        "regions.all_enter",
        REGION,
        "if (!all_are_here()) return nullptr;",
        "if (devices_ == 0) return nullptr;",
        "A device's records leave before it is known which other devices come to the region.",
        (f"{NATIVE}::test_devices_take_turns",),
    ),
    Slip(
        "regions.left",
        REGION,
        "return standing.has_left && static_cast<uint32_t>(standing.index) == standing.last;",
        "return standing.has_left;",
        "Records of a device that has left and that have not come yet are not waited for.",
        (RANDOM,),
    ),
    Slip(
        "regions.gap_moves_on",
        ORDER,
        "region.move(device, index + std::max<uint64_t>(parked.gap_count, 1));",
        "region.move(device, index + 1);",
        "Of several records of a device that were dropped one after the other only the first is not waited for.",
        ("tests/native/full_ring_test.cc::test_region_markers_outlive_a_full_ring",),
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
        "regions.relaxed_behind_others",
        REGION,
        "while (index <= last && parked.count({index, device}) != 0) ++index;",
        "index = last + 1;",
        "In a relaxed region what is waited for passes records of its own device that have not come.",
        (f"{NATIVE}::test_relaxed_region_keeps_each_devices_own_order",),
    ),
    Slip(
        "regions.relaxed_for_good",
        ORDER,
        "if (stuck_sites_.count(header.site) != 0) region.relax();",
        "if (stuck_sites_.count(header.site) > 1) region.relax();",
        "A line that has had a deadlock has it again each time, for two seconds.",
        (f"{NATIVE}::test_relaxed_region",),
    ),
    Slip(
        "regions.ties_inside",
        RULE,
        "may_diverge = may_diverge or (is_inside_whole and around.collectives_after_effects)",
        "may_diverge = bool(may_diverge)",
        "Collectives of a region inside one that counts are not tied to the effects ahead of them: a deadlock.",
        (f"{REGIONS}/test_collectives.py::test_collectives_of_a_region_inside_are_tied_too",),
    ),
    Slip(
        "regions.ties_at_the_end",
        RULE,
        "return (*tokens, *(after(tokens, outs) if may_diverge else outs))",
        "return (*tokens, *outs)",
        "XLA gathers what leaves a region ahead of the region's effects: a deadlock.",
        (
            f"{REGIONS}/test_waiting.py::test_collectives_come_after_effects",
            f"{REGIONS}/test_collectives.py::test_collectives_of_a_region_inside_are_tied_too",
        ),
    ),
    Slip(
        "regions.loops_diverge",
        RULE,
        'return not check_vma or _jax.differs(eqn.params["cond_jaxpr"].out_avals[0])',
        "return False",
        "Devices are taken to make the same number of turns of every loop: a deadlock.",
        (f"{REGIONS}/test_collectives.py::test_devices_whose_turns_differ_are_tied",),
    ),
    Slip(
        "regions.skips",
        RULE,
        "skips = counts and bool(replica_axes) and bool(_regions_in(jaxpr))",
        "skips = False",
        "Replicas that have effects of their own are waited for at the indices that they skip.",
        (f"{REGIONS}/test_parts.py::test_replicas_may_have_effects_of_their_own",),
    ),
    Slip(
        "regions.together",
        RULE,
        "all_come=known.all_come and not _may_diverge(jaxpr, False, known.asks_all))",
        "all_come=False)",
        "A device that has its answer goes on to where it waits for one whose callback has not been called.",
        (f"{REGIONS}/test_together.py::test_devices_go_on_together_where_all_come",),
    ),
    Slip(
        "regions.together_where_they_diverge",
        RULE,
        "all_come=known.all_come and not _may_diverge(jaxpr, False, known.asks_all))",
        "all_come=known.all_come and not _may_diverge(jaxpr, check_vma, known.asks_all))",
        "A device waits for others whose effects come after its own next one: a deadlock.",
        (f"{REGIONS}/test_together.py::test_devices_go_on_together_where_all_come",),
    ),
    Slip(
        "regions.failure_waits",
        "dispatch/native/drain/together.cc",
        "group->failed = group->failed || (failed && call.fail_as_one);",
        "group->failed = failed && call.fail_as_one;",
        "A device that gets its answer after another one has failed goes on to where it waits for that one.",
        ("tests/native/together_test.cc::test_failure_is_all_devices",),
    ),
    Slip(
        "regions.others_in_the_calling_thread",
        "dispatch/native/drain/together.cc",
        "group->waiting.insert(group->waiting.begin(), std::move(continuation));",
        "group->waiting.push_back(std::move(continuation));",
        "The thread of a device that comes last runs another one's program, which waits for that device.",
        ("tests/native/together_test.cc::test_the_last_to_come_goes_on_in_its_own_thread",),
    ),
    Slip(
        "regions.others_fail_too",
        "dispatch/native/drain/together.cc",
        "group->failed = group->failed || (failed && call.fail_as_one);",
        "group->failed = group->failed || failed;",
        "Where effects are to go on after an error, they end on devices that do not wait for the one that has failed.",
        ("tests/native/together_test.cc::test_failure_is_one_devices_own",),
    ),
    Slip(
        "regions.others_go_on",
        "dispatch/draining/failures.py",
        "            native.end_together(*key)\n",
        "            pass\n",
        "A device goes on, to where XLA gathers from one whose callback has raised.",
        ("tests/lowering/regions/test_together.py::test_failure_ahead_of_what_xla_gathers",),
    ),
    Slip(
        "regions.ends_alone",
        "lowering/rules/error_if.py",
        "if in_region().asks_all and ends_program(ctx.eqn):",
        "if False:",
        "A device ends the program alone, and the others wait for it in a collective.",
        (f"{REGIONS}/test_together.py::test_devices_ask_each_other_whether_one_ends_the_program",),
    ),
    Slip(
        "regions.asks_in_a_branch",
        "lowering/passes/in_region.py",
        "if goes_on.first is not None or ends.first is not ends.last or ends.last.primitive is not effect_p:",
        "if goes_on.first is not None or ends.last.primitive is not effect_p:",
        "A branch of the user's that ends the program is taken by all devices, with the effects ahead of that.",
        (f"{REGIONS}/test_together.py::test_devices_ask_each_other_whether_one_ends_the_program",),
    ),
    Slip(
        "regions.all_are_wrong",
        "lowering/rules/effect.py",
        "if not (site.content.raises_itself and in_region().asks_all):",
        "if True:",
        "A device ends the program where another one is wrong.",
        (f"{REGIONS}/test_together.py::test_error_if",),
    ),
)
