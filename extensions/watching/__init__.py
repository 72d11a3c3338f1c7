"""`fx.watch`: the first bad value of a function, found inside the compiled program."""

from effects._model.content import described_later
from effects._model.effect import PROGRAM, Effect, register_effect

WATCH = register_effect(Effect("watch", domain=PROGRAM))  # of what is found, and of what a search records for itself
described_later("watch", "effects.extensions.watching.found")
described_later("watch_log", "effects.extensions.watching.found")
