"""Run files: what `fx.record` has written, read and compared."""

from effects._model.wire import Kind as Kind
from effects.extensions.runs.reading import Count as Count
from effects.extensions.runs.reading import Event as Event
from effects.extensions.runs.reading import Process as Process
from effects.extensions.runs.reading import Run as Run
from effects.extensions.runs.reading import RunError as RunError
from effects.extensions.runs.reading import read as read
from effects.extensions.runs.recording import Recording as Recording

__all__ = ["Count", "Event", "Kind", "Process", "Recording", "Run", "RunError", "read"]
