"""Sequences of dispatches on one device or on several, by one thread or by several."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.oracle.devices.loose import loose_regions, skipping_regions
from tests.oracle.devices.placing import Placing
from tests.oracle.devices.region import Region
from tests.oracle.language import Run, statements
from tests.oracle.statements.callback import Callback


@dataclass(frozen=True)
class MeshRun(Run):
    """One dispatch of a program on several devices."""

    placing: Placing = field(default=Placing((0,)))


@dataclass(frozen=True)
class Outside:
    """An effect outside of any program, or a barrier."""

    label: str  # none: a barrier
    value: int = 0
    kind: str = ""  # one of EAGER, if it is one of JAX's own


Item = Run | Outside


@dataclass(frozen=True)
class DeviceCase:
    """Sequences, each by a thread of its own if there are several."""

    sequences: tuple[tuple[Item, ...], ...]
    capture: bool = False
    order: str = "thread"

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(item for sequence in self.sequences for item in sequence if isinstance(item, Run))

    @property
    def after_error(self) -> str:
        """Where a program is ended on one device of a region, what the others do until they fail is no evidence."""
        bodies = [s.body for s in statements(self.runs) if isinstance(s, Region)]
        callbacks = [s for s in statements(tuple(bodies)) if isinstance(s, Callback)]
        return "stop" if any(callback.awaited and callback.fails_at for callback in callbacks) else "go_on"

    def kinds(self) -> tuple[str, ...]:
        placings = [run.placing for run in self.runs if isinstance(run, MeshRun)]
        found = ["capture"] * self.capture + [f"order_{self.order}"] * (self.order != "thread")
        found += [f"threads_{len(self.sequences)}"] * (len(self.sequences) > 1)
        found += ["explicit"] * any(p.explicit for p in placings)
        found += ["permuted"] * any(list(p.devices) != sorted(p.devices) for p in placings)
        found += ["changing_devices"] * (len({p.devices for p in placings}) > 1)
        found += ["exported"] * any(run.exported and not isinstance(run, MeshRun) for run in self.runs)
        found += ["exported_for_several"] * any(run.exported and isinstance(run, MeshRun) for run in self.runs)
        found += ["fails_in_region"] * (self.after_error == "stop")
        found += ["mixed"] * (bool(placings) and len(placings) < len(self.runs))
        found += ["changes"] * any(run.change for run in self.runs)
        found += ["loose"] * any(loose_regions(run.program) for run in self.runs)
        found += ["skips"] * any(skipping_regions(run.program) - loose_regions(run.program) for run in self.runs)
        items = [item for sequence in self.sequences for item in sequence]
        found += ["outside"] * any(isinstance(item, Outside) and bool(item.label) for item in items)
        found += [f"eager_{item.kind}" for item in items if isinstance(item, Outside) and item.kind]
        found += ["named_barriers"] * any(run.barrier for run in self.runs)
        found += ["barriers"] * any(isinstance(item, Outside) and not item.label for item in items)
        found += [f"devices_{size}" for size in sorted({len(p.devices) for p in placings})]
        return (*found, *(f"entry_{entry}" for entry in sorted({p.entry for p in placings})))
