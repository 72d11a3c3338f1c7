"""`fx.watch`: the first bad value of a function, found inside the compiled program."""

from effects._model.content import described_later
from effects._model.effect import PROGRAM, Effect, register_effect

_PAGE = "docs/how-to/watch.md"
WATCH = register_effect(Effect("watch", domain=PROGRAM))  # the effect of findings, and of a search's own records
described_later("watch", "effects.extensions.watching.found")
described_later("watch_log", "effects.extensions.watching.found")
