"""NumPy's print options, as far as native code follows them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class PrintOptions(NamedTuple):
    """Print options that native code follows."""

    threshold: int
    edgeitems: int
    linewidth: int
    precision: int
    mode: int  # the position in `_MODES`
    suppress: bool
    sign: str
    nan: str
    inf: str


_MODES = ("fixed", "unique", "maxprec", "maxprec_equal")
_MOST_DIGITS = 100
_MOST = 1 << 40
"""Greater numbers mean the same."""


def print_options(options: Mapping[str, Any]) -> PrintOptions | None:
    """What `numpy.get_printoptions` gives, if native code follows it."""
    if options.get("legacy") or options.get("formatter") or options.get("override_repr"):
        return None
    threshold, edge, width, digits = (options[name] for name in ("threshold", "edgeitems", "linewidth", "precision"))
    texts = options["nanstr"], options["infstr"]
    if not all(isinstance(number, int) for number in (edge, width, digits)):
        return None
    if edge < 1 or not 0 <= digits <= _MOST_DIGITS or options["floatmode"] not in _MODES:
        return None
    if not all(isinstance(text, str) and text.isascii() and text.isprintable() and text for text in texts):
        return None
    return PrintOptions(
        threshold=_MOST if threshold > _MOST else max(math.floor(threshold), -1),
        edgeitems=min(edge, _MOST),
        linewidth=max(-_MOST, min(width, _MOST)),
        precision=digits,
        mode=_MODES.index(options["floatmode"]),
        suppress=bool(options["suppress"]),
        sign=options["sign"],
        nan=texts[0],
        inf=texts[1],
    )
