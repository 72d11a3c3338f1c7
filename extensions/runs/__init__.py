"""Run files: what effects a run has had, in a file that outlives the process."""

import os

from effects._commands import register_command

_PAGE = "docs/how-to/record.md"

register_command(
    "show",
    "Shows what a run file has: the records in program order, or what each device came to last.",
    "effects.extensions.runs.show",
)
register_command(
    "tail",
    "Follows a run while it is recorded.",
    "effects.extensions.runs.tail",
)
register_command(
    "diff",
    "Shows where two runs begin to differ, and how that grows. The exit status is that of diff: 0, 1, or 2.",
    "effects.extensions.runs.diff",
)
register_command(
    "trace",
    "Writes a run file as a timeline for Perfetto.",
    "effects.extensions.runs.trace",
)

if _path := os.environ.get("EFFECTS_RUN"):
    from effects.extensions.runs.recording import record_process

    record_process(_path)
