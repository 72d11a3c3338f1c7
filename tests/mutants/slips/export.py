"""Export: programs that leave their process."""

from tests.mutants.slip import Slip

FILE = "extensions/export/exported.py"
DOMAINS = "tests/extensions/export/test_domains.py"

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
)
