"""Texts that native code makes: how arrays are laid out, and under which options."""

from tests.mutants.slip import Slip

TEXTS = "effects/_model/text.py"

SLIPS = (
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
