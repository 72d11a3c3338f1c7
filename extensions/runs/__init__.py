"""Run files: what effects a run has had, in a file that outlives the process."""

import os

if _path := os.environ.get("EFFECTS_RUN"):
    from effects.extensions.runs.recording import record_process

    record_process(_path)
