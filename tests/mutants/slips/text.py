"""Texts that native code makes: how arrays are laid out, and under which options."""

from tests.mutants.slip import Slip

ARRAY, TEXTS = "dispatch/native/text/array.cc", "effects/_model/native_text.py"

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
        "dispatch/streams/stream.py",
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
)
