"""Lines of `jax.debug.print` that show arrays as JAX does."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from effects import _jax
from effects._model.content import described_by
from effects._model.line import Line, jax_text
from effects._model.record import Record
from effects._model.site import Site


@described_by("jax_line")
@dataclasses.dataclass(frozen=True)
class JaxLine(Line):
    """A line whose format gets arrays of JAX's, on a CPU device."""

    has_placeholders: bool = True
    x64: bool = False

    def native_plan(self, site: Site) -> None:
        return None

    def text(self, record: Record) -> str:
        with _jax.callback_context(self.x64) as put:
            given = record.args, record.fields
            args, kwargs = jax.tree.map(lambda x: put(x) if isinstance(x, np.ndarray) else x, given)
            if self.has_placeholders:
                return jax_text(self.fmt, dict(self.options or ()), args, kwargs)
            assert not kwargs, "Format without placeholders should not have kwargs."
            return " ".join((self.fmt, *map(str, args)))
