"""Effects that were recorded and not carried out: how many of which, and where."""

from __future__ import annotations

from collections import Counter

from effects._model.site import Site


class LeftOut:
    """A count of them, by effect and by the user's line, in the order in which they came."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, site: Site, count: int) -> None:
        """Counts effects of one site; a lane counts as one."""
        if count:
            key = site.effect.name, str(site.where)
            self._counts[key] = self._counts.get(key, 0) + count

    def total(self) -> int:
        return sum(self._counts.values())

    def by_effect(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for (effect, _), count in self._counts.items():
            counts[effect] += count
        return counts

    def __str__(self) -> str:
        """How many of which effect, and where the first of them is."""
        counts = [f"{count} `{effect}`" for effect, count in self.by_effect().items()]
        return f"{' and '.join(counts)} effects, from {next(iter(self._counts))[1]} on"
