"""The log pass: in a kernel that cannot call the host, effects write their records into a log.

It is of the same shape as the token pass. The log is a reference that every body with effects has as a constant. The
numbers of words used and of effects are values that bodies carry: a counter in memory would be a race, in which threads
of the program read it before others have written it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _errors as errors
from effects import _jax
from effects._jax import kernel_logs, pallas
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects.extensions.kernels.log import COUNTS, need_of
from effects.lowering.holders import send
from effects.lowering.summary import summarize

MSG_UNSUPPORTED = (
    "The effect `{effect}` at {where} records {given}, in a kernel that is compiled for {target}. There a kernel's log "
    "takes {takes}. {remedy}, or simulate the kernel with `interpret=True`."
)


@dataclasses.dataclass(frozen=True)
class LogWriter:
    """The log pass, with the layout of the log that it writes."""

    sites: tuple[Site, ...]  # the kernel's sites, by number; other sites' effects stay in the kernel
    capacity: int
    target: str

    def write(self, jaxpr: Any, log: Any, references: Sequence[Any]) -> list[Any]:
        """Evaluates a kernel's jaxpr with its effects written to a log."""
        # JAX's lowering for Triton fails for a literal among a branch's results (0.10 to 0.12: `_cond_lowering_rule` in
        # jax/_src/pallas/triton/lowering.py). So the first counts are values of the kernel.
        none = np.int32(0)
        state = [jax.lax.add_p.bind(none, none) for _ in range(COUNTS)]
        state, outs = send(self, jaxpr, references, [log], state)
        for at, count in enumerate(state):
            _store(log, np.int32(at), count)
        return outs

    def bind(self, eqn: Any, operands: list[Any], consts: Sequence[Any], state: list[Any]) -> Sequence[Any] | None:
        if eqn.primitive is not effect_p or eqn.params["site"] not in self.sites:
            return None
        state[:] = self.effect(operands, eqn.params["site"], consts[0], state)
        return []

    def enters(self, eqn: Any) -> bool:
        return any(summarize(inner).all_effects for inner in _jax.jaxprs_in(eqn.params))

    def effect(self, operands: Sequence[Any], site: Site, log: Any, state: Sequence[Any]) -> list[Any]:
        """Writes one effect. Returns the state behind it.

        An effect that does not fit is written all the same, behind the words that count, and so is one that a mask
        without lanes disables: there is no branch. The state has the number of valid words.
        """
        used, count = state
        operands = [x if isinstance(x, jax.Array) else np.asarray(x, _jax.typeof(x).dtype) for x in operands]
        given, written = site.without_idle_mask(operands)
        self._check(written, given)
        at = jax.lax.min(used, np.int32(self.capacity)) + np.int32(COUNTS)
        _store(log, at, jnp.int32(self.sites.index(site) + 1))
        at = at + np.int32(1)
        for operand in given:
            for words in as_words(operand):
                _store(log, at, words)
                at = at + np.int32(words.size)
        if len(given) == len(operands):
            return [used + np.int32(need_of(written)), count + np.int32(1)]
        active = operands[0].astype(jnp.int32)
        return [used + active * np.int32(need_of(written)), count + active]

    def _check(self, site: Site, operands: Sequence[Any]) -> None:
        """Raises if the target cannot write an operand."""
        for operand in operands:
            takes, remedy = _refusal(self.target, operand.shape, np.dtype(operand.dtype))
            if takes:
                shown = {"effect": site.effect, "where": site.where, "target": self.target, "takes": takes}
                size = f"an array of {list(operand.shape)}" if operand.shape else "a scalar"
                given = f"{size} of type {operand.dtype}"
                raise errors.unsupported(MSG_UNSUPPORTED.format(given=given, remedy=remedy, **shown))


def _store(log: Any, at: Any, value: Any) -> None:
    """Writes words into the row of this program."""
    if value.ndim == 0:
        log[0, at] = value
    else:
        log[0, pallas.ds(at, value.size)] = value.reshape(value.size)


def _refusal(target: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[str, str]:
    """The operands that a target takes in place of such an array, and the remedy; empty if it takes the array."""
    if target == kernel_logs.SIMULATION:
        return "", ""
    if dtype.kind == "c":
        return "real numbers", "Record `x.real` and `x.imag`"
    if target == kernel_logs.MOSAIC_TPU and shape:
        return "scalars", "Record one element or a sum"
    if target != kernel_logs.TRITON and dtype.itemsize == 8:
        return "numbers of 32 bits and fewer", "Convert it with `astype`"
    return "", ""


def as_words(x: Any) -> list[Any]:
    """A value as 32-bit words: first the lowest words of all elements."""
    dtype = np.dtype(x.dtype)
    if dtype.kind == "c":
        return [*as_words(x.real), *as_words(x.imag)]
    if dtype == np.int32:
        return [x]
    if dtype.kind in "biu" and dtype.itemsize < 4:
        return [x.astype(jnp.int32)]
    if dtype.itemsize < 4:
        x = x.astype(jnp.float32)
    if dtype.itemsize <= 4:
        return [jax.lax.bitcast_convert_type(x, jnp.int32)]
    x = x if dtype.kind in "iu" else jax.lax.bitcast_convert_type(x, jnp.int64)
    return [x.astype(jnp.int32), (x >> 32).astype(jnp.int32)]
