"""Export: programs that leave their process."""

from tests.mutants.slip import Slip

FILE = "extensions/export/exported.py"
DOMAINS = "tests/extensions/export/test_domains.py"
TEST = "tests/extensions/export/test_export.py"

SLIPS = (
    Slip(
        "export.domains_swapped",
        FILE,
        "outs, after = program._run(here, flat)",
        "outs, after = program._run(here[::-1], flat)\n    after = after[::-1]",
        "An exported program counts its domains as each other's.",
        (f"{DOMAINS}::test_domains_of_an_exported_program_inside_another",),
    ),
    Slip(
        "export.tokens_come_back",
        FILE,
        "return dict(zip(tokens, after, strict=True)), outs",
        "return dict(tokens), outs",
        "What follows the call of an exported program takes the places of the program's own effects.",
        (f"{DOMAINS}::test_domains_of_an_exported_program_inside_another",),
    ),
    Slip(
        "export.keys",
        "dispatch/calling/programs.py",
        "return outs, tuple(after[key] for key in keys)",
        "return outs, tuple(after[key] for key in keys[::-1])",
        "An exported program gives its tokens back as each other's.",
        (f"{DOMAINS}",),
    ),
    Slip(
        "export.effects_travel",
        FILE,
        'register_effect(Effect(**{**vars(effect), "ordered": known.ordered if known else effect.ordered}))',
        "known or effect",
        "An effect that a process does not know is not registered when a program with it is read.",
        (f"{TEST}::test_effects_of_an_exported_program_are_registered",),
    ),
    Slip(
        "export.missing_callbacks",
        FILE,
        "if function.fn is None}):",
        "if not function.name}):",
        "That a callback is not registered is said when it is called, and not when the program is read.",
        (f"{TEST}::test_missing_callback_is_named_when_the_program_is_read",),
    ),
    Slip(
        "export.devices",
        FILE,
        "if devices and program.nr_devices == 1:",
        "if devices and program.nr_devices == 0:",
        "A program that was exported for one device has its effects on each of several.",
        (f"{TEST}::test_exported_for_several_devices",),
    ),
    Slip(
        "export.sizes",
        "effects/_model/site.py",
        "size if size >= 0 else sizes[-1 - size]",
        "size if size >= 0 else sizes[size]",
        "Records of a program for several symbolic sizes are read with each other's sizes.",
        ("tests/extensions/export/test_symbolic_shapes.py::test_symbolic_dimensions_are_found_in_the_records",),
    ),
)
