"""Progress bars that compiled loops drive, on terminals and in notebooks."""

from effects._model.content import described_later
from effects._model.effect import PROGRAM, Effect, register_effect

_PAGE = "docs/how-to/progress.md"
PROGRESS = register_effect(Effect("progress", domain=PROGRAM))  # here: a handler may name it before any bar
described_later("progress", "effects.extensions.progress.api")
