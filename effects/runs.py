"""Reading and comparing run files, which `fx.record` writes."""

from effects import _lazy
from effects._model.wire import Kind as Kind

with _lazy.required_by("effects.runs"):
    from effects.extensions.runs.diff import Difference as Difference
    from effects.extensions.runs.diff import Pair as Pair
    from effects.extensions.runs.diff import Parting as Parting
    from effects.extensions.runs.diff import SiteDifference as SiteDifference
    from effects.extensions.runs.diff import diff as diff
    from effects.extensions.runs.reading import Count as Count
    from effects.extensions.runs.reading import Event as Event
    from effects.extensions.runs.reading import Process as Process
    from effects.extensions.runs.reading import Run as Run
    from effects.extensions.runs.reading import RunError as RunError
    from effects.extensions.runs.reading import read as read
    from effects.extensions.runs.recording import Recording as Recording
    from effects.extensions.runs.trace import trace as trace
