"""Rings: what is published is not lost, and what is dropped is counted."""

from tests.mutants.slip import Slip

PUBLISHER = "dispatch/native/producer/publisher.cc"
RING = "dispatch/native/producer/producer_ring.cc"
FULL = "tests/native/full_ring_test.cc"
PUBLISHING = "tests/native/publishing_test.cc"
MARKERS = f"{FULL}::test_region_markers_outlive_a_full_ring"

SLIPS = (
    Slip(
        "rings.markers_stay",
        PUBLISHER,
        "return IsMarker(header.kind) || header.reply",
        "return header.kind == Kind::kClose || header.reply",
        "A full ring drops the marker of a device that enters or leaves, and the region never ends.",
        (MARKERS,),
    ),
    Slip(
        "rings.two_devices",
        RING,
        "range.device == device && range.first.index",
        "range.first.index",
        "Drops of two devices whose numbers follow each other are taken for drops of one.",
        (f"{FULL}::test_adjacent_drops_of_two_devices_are_two",),
    ),
    Slip(
        "rings.two_phases",
        RING,
        "range.first.epoch == token.epoch && range.first.phase == token.phase &&",
        "range.first.epoch == token.epoch &&",
        "Drops in a region and behind it whose numbers follow each other are taken for drops of one.",
        (f"{FULL}::test_adjacent_drops_of_two_phases_are_two",),
    ),
    Slip(
        "rings.two_programs",
        RING,
        "range.first.epoch == token.epoch && range.first.phase == token.phase &&",
        "range.first.phase == token.phase &&",
        "Drops of two programs whose numbers follow each other are taken for drops of one.",
        (f"{FULL}::test_adjacent_drops_of_two_programs_are_two",),
    ),
    Slip(
        "rings.large_given_back",
        PUBLISHER,
        "  large_bytes_.fetch_sub(header.payload_size, std::memory_order_relaxed);\n  return Block(block);",
        "  return Block(block);",
        "Large records that have left their ring count as if they were there, and soon none is admitted.",
        (
            f"{PUBLISHING}::test_ended_threads_records_are_drained",
            f"{PUBLISHING}::test_drop_counts_what_it_drops",
            f"{FULL}::test_large_records_leave_room_behind",
        ),
    ),
    Slip(
        "rings.kept_size",
        PUBLISHER,
        "header.flags &= static_cast<uint16_t>(~kLarge); // on the side list the payload follows its header\n",
        "",
        "A large record that is kept beside a full ring is read as if it travelled by itself.",
        (f"{PUBLISHING}::test_large_close_is_never_dropped",),
    ),
)
