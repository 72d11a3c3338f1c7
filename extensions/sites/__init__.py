"""Sites from outside: what effects this process has, and filters that are changed while programs run."""

import os

_PAGE = "docs/how-to/filters.md"

if _rules := os.environ.get("EFFECTS_SITES"):
    from effects.extensions.sites.rules import follow_rules

    follow_rules(_rules)
