"""Rules for sites in the environment: `EFFECTS_SITES="train.py:31=off;model.py:every=100"`."""

from __future__ import annotations

import re

from effects import _errors as errors
from effects.extensions.sites.lines import Pattern, Switch, show_every, show_from, turn
from effects.lowering.sites import Line, LineFilter, known_sites

MSG_RULE = (
    "`EFFECTS_SITES` in the environment has the rule {rule!r}. Rules are separated by semicolons, and each is a "
    "pattern with `=off`, `=on`, `:every=100` or `:level=debug` behind it, or a space and `every=100`. Write, say, "
    "`train.py:31=off;model.py:every=100`."
)
_RULE = re.compile(r"(?P<pattern>.+?)([= ](?P<turn>on|off)|[: ]every=(?P<every>\d+)|[: ]level=(?P<level>\w+))")
_CALL = "`EFFECTS_SITES` in the environment"


def follow_rules(text: str) -> None:
    """Applies rules, in their order, to the filters of lines that are seen from now on."""
    rules = [_read(rule.strip()) for rule in text.split(";") if rule.strip()]

    def apply(line: Line, known: LineFilter) -> None:
        for pattern, switch in rules:
            if known.can_be_switched and pattern.names(line):
                switch(known)

    known_sites.listen_for_lines(apply)


def _read(rule: str) -> tuple[Pattern, Switch]:
    if (match := _RULE.fullmatch(rule)) is None:
        raise errors.value_error(MSG_RULE.format(rule=rule))
    pattern = Pattern.read(match["pattern"], _CALL)
    if match["turn"] is not None:
        return pattern, turn(match["turn"] == "on")
    if match["every"] is not None:
        return pattern, show_every(int(match["every"]), _CALL)
    return pattern, show_from(int(level) if (level := match["level"]).isdecimal() else level, _CALL)
