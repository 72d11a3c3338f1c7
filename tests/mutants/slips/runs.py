"""Run files: what was published is there, whole, once and in order, and nothing else is."""

from tests.mutants.slip import Slip

WRITER = "extensions/runs/native/writer.cc"
READER = "extensions/runs/native/reader.cc"
NATIVE = "tests/native/runs_test.cc"

SHOWN = "tests/extensions/runs/test_shown.py"

SLIPS = (
    Slip(
        "runs.lines_of_python",
        "effects/_model/text.py",
        "return _OF_PYTHON if plan is None else native.Plan(plan)",
        "return native.Plan(Plan([]) if plan is None else plan)",
        "Records whose lines Python makes are left out by those who read a run file.",
        (f"{SHOWN}::test_what_was_printed_is_shown_byte_for_byte",),
    ),
    Slip(
        "runs.across_segments",
        WRITER,
        "size <= left ? taken : taken + left",
        "size + left * 0 <= segment ? taken : taken + left",
        "An entry begins in one segment and ends in the next.",
        (f"{NATIVE}::test_full_file_keeps_the_newest",),
    ),
    Slip(
        "runs.not_copied",
        READER,
        "      if (is_copy_ && begin < end) copy(begin, end);\n",
        "",
        "A look sees what was there when the file was opened.",
        (f"{NATIVE}::test_looks_while_threads_write",),
    ),
    Slip(
        "runs.looked_at_once",
        READER,
        "        if (whole < offset) unread.emplace_back(position(whole), position(offset));\n",
        "        (void)position;\n",
        "What was not whole at a look is never looked at again.",
        (f"{NATIVE}::test_what_is_whole_later_is_seen_then",),
    ),
    Slip(
        "runs.copies_between_looks",
        READER,
        "  if (earlier != nullptr) leave_out_copies_of(*earlier);\n",
        "",
        "What all devices have comes again with the device that is behind.",
        (f"{NATIVE}::test_copies_between_looks_come_once",),
    ),
    Slip(
        "runs.same_file",
        WRITER,
        "    if (::rename(path.c_str(), NameBeside(path).c_str()) != 0) Throw(errno);\n",
        "    if (::ftruncate(file.number, 0) != 0) Throw(errno);\n",
        "A reader's mapping becomes shorter when the next run begins.",
        (f"{NATIVE}::test_reader_keeps_its_file",),
    ),
)
