"""`effects merge`: the logs of several processes as one."""

from tests.mutants.slip import Slip

FILE = "extensions/handlers/merge.py"
READING = "extensions/handlers/merge.py"
TEST = "tests/extensions/handlers/test_merge.py"
SPLIT = f"{TEST}::test_a_log_that_was_split_comes_together"

SLIPS = (
    Slip(
        "merge.common_part",
        "extensions/handlers/merge.py",
        "limits[of] = min(",
        "limits[of] = max(",
        "Of a run that crashed that is merged to which some process has come.",
        (f"{TEST}::test_partial_merge_says_where_each_log_ends",),
    ),
    Slip(
        "merge.device_before_index",
        READING,
        "token = thread, epoch, domain, phase, index, device",
        "token = thread, epoch, domain, phase, device, index",
        "Records of a region come device by device, and not by their index.",
        (SPLIT,),
    ),
    Slip(
        "merge.phase",
        READING,
        "token = thread, epoch, domain, phase, index, device",
        "token = thread, epoch, domain, index, phase, device",
        "Records of regions come among those around them by their index alone.",
        (SPLIT,),
    ),
    Slip(
        "merge.lane",
        READING,
        'tuple(record["lane"]))',
        'tuple(record["lane"][::-1]))',
        "Nested lanes come in the order of the inner ones.",
        (SPLIT,),
    ),
    Slip(
        "merge.copies",
        FILE,
        'return line.kind == "whole" and line.log.process != min(_processes_of(line))',
        'return line.kind == "whole" and line.log.process != max(_processes_of(line))',
        "An unordered record of a whole value is kept from the wrong log, at another place.",
        (f"{TEST}::test_what_has_no_place_stays_behind_what_it_came_behind",),
    ),
    Slip(
        "merge.values",
        FILE,
        'or (first.kind == "whole" and not _are_the_same([first, line])):',
        'or (first.kind == "device" and not _are_the_same([first, line])):',
        "Whole values that differ between processes are not noticed.",
        (f"{TEST}::test_logs_of_different_programs[values]",),
    ),
    Slip(
        "merge.goes_on",
        FILE,
        "return (thread, epoch) not in log.epochs and epoch < log.newest.get(thread, epoch)",
        "return (thread, epoch) not in log.epochs",
        "A log that ends too early is not noticed.",
        (f"{TEST}::test_log_that_ends_ahead_of_a_program_of_another_process",),
    ),
    Slip(
        "merge.unordered",
        FILE,
        "if counts[key][process] != counts[key][line.log.process]:",
        "if counts[key][process] > counts[key][line.log.process]:",
        "An unordered record that one process lacks is not noticed.",
        (
            f"{TEST}::test_logs_of_different_programs[unordered]",
            f"{TEST}::test_unordered_record_that_one_process_lacks",
        ),
    ),
    Slip(
        "merge.kinds",
        READING,
        'line.kind = "device" if in_region(phase) else "whole" if is_whole else "process"',
        'line.kind = "whole" if is_whole else "process"',
        "Records of regions are taken for what each process did by itself.",
        (SPLIT, f"{TEST}::test_device_that_two_logs_have"),
    ),
)
