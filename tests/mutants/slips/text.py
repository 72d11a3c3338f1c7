"""Texts that native code makes: how arrays are laid out, and under which options."""

from tests.mutants.slip import Slip

ARRAY, TEXTS = "dispatch/native/text/array.cc", "effects/_model/text.py"

SLIPS = (
    Slip(
        "text.one_word_at_least",
        ARRAY,
        "> width && line > indent) {",
        "> width) {",
        "A line too short for its first word stays empty.",
        ("tests/native/text_test.cc::test_lines_are_wrapped",),
    ),
    Slip(
        "text.middle",
        ARRAY,
        "if (head == length) return;\n",
        "return;\n",
        "The end of an array that is summarised is not shown.",
        ("tests/native/text_test.cc::test_middles_are_left_out",),
    ),
    Slip(
        "text.options_of_the_call",
        "dispatch/runtime/streams.py",
        "options = print_options(np.get_printoptions())",
        'options = print_options(np.get_printoptions() | {"precision": 8, "linewidth": 75})',
        "Arrays are shown under NumPy's own print options.",
        ("tests/effects/test_native_text.py::test_options_are_those_of_the_call",),
    ),
    Slip(
        "text.specification",
        TEXTS,
        "return field._replace(conversion=fixed[2], precision=int(fixed[1]))",
        "return field",
        "The elements of an array are shown without their specification.",
        ("tests/effects/test_native_text.py::test_specifications_of_elements",),
    ),
    Slip(
        "text.rows_of_other_sites",
        "dispatch/native/text/rows.cc",
        "if (is_first || header.site != last_site) {",
        "if (is_first) {",
        "All records that came together are shown as those of the first one's site.",
        ("tests/native/text_test.cc::test_rows_of_several_sites",),
    ),
    Slip(
        "text.padded_conversion",
        "effects/_model/line.py",
        "return not any(spec and conversion for",
        "return not any(False for",
        "What is padded behind a conversion is not padded.",
        ("tests/extensions/handlers/test_native_rows.py::test_texts_in_json",),
    ),
    Slip(
        "text.writer_that_may_wait",
        "dispatch/runtime/replay.py",
        "if may_wait(self._call[1]) or (lines",
        "if (lines",
        "An output of the user's, which calls programs, gets several lines at a time.",
        ("tests/effects/test_output.py::test_output_may_call_programs_and_wait_for_them",),
    ),
    Slip(
        "text.follows_records",
        "dispatch/native/drain/batch.cc",
        "last != nullptr && !last->has_callbacks && Continues(*last, info)",
        "last != nullptr && Continues(*last, info)",
        "Behind a callback, texts are handed to Python one by one.",
        ("tests/native/batch_test.cc::test_text_follows_records",),
    ),
    Slip(
        "text.lanes_of_others",
        "dispatch/native/text/format.cc",
        "at += lane[axis] * piece.strides[axis]",
        "at += lane[0] * piece.strides[axis]",
        "A lane shows the values of another.",
        ("tests/native/text_test.cc::test_lanes_that_have_the_effect",),
    ),
)
