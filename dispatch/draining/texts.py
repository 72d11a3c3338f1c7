"""Text that native code has formatted: written at once, and record by record where one of its programs has failed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from effects._model.site import Site
from effects._model.wire import TEXT_RUN, Item
from effects.dispatch.draining.replay import Replay


def replay_text(
    item: Item, replay_of: Callable[[int], Replay], find_site: Callable[[int], Site], has_failed: bool
) -> None:
    """Writes an item's text.

    Args:
        item: Text of consecutive records of one thread's programs.
        replay_of: Replays what came from the program of an epoch of that thread.
        find_site: The site that has a number.
        has_failed: Whether some program has failed, and the text may be of it.
    """
    first, error = replay_of(item.epoch), None
    if not has_failed and (error := first.write(item.data)) is None:
        return
    parts = [(epoch, find_site(site), lines) for epoch, site, lines in _parts(item)]
    if error is not None and (item.count == 1 or isinstance(error, OSError)):
        # It may have been written in part, and nothing is written twice.
        first.lose(error, [(site, len(lines)) for _, site, lines in parts])
        return
    # Whatever else is raised, say since a character cannot be encoded, is raised before anything is written. So the
    # lines before the one that cannot be written are written now.
    written = [replay_of(epoch).lines(site, lines) for epoch, site, lines in parts]
    if error is not None and all(written):
        first.fail(error, parts[0][1])


def _parts(item: Item) -> list[tuple[int, int, list[str]]]:
    """The text taken apart: epoch, site, and what each record of it became."""
    data, start, parts = item.data.encode(), 0, []
    for site, end, epoch, count in np.frombuffer(item.block, TEXT_RUN).tolist():
        lines = [f"{line}\n" for line in data[start:end].decode().split("\n")[:-1]]
        each = len(lines) // count  # a format may have several lines
        parts.append((epoch, site, ["".join(lines[at : at + each]) for at in range(0, len(lines), each)]))
        start = end
    return parts
