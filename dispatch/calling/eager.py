"""Effects outside of any program: each is an epoch, which ends after those of programs still running."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._config import config
from effects._model.device import device_number
from effects._model.effect import domain_number, token_key
from effects._model.primitive import effect_p
from effects._model.site import Site
from effects._model.wire import ALL_DEVICES, Kind
from effects.dispatch.calling.jit import jit
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.dispatch.runtime.streams import Stream
from effects.lowering.native_module import native
from effects.lowering.sites import publish, publish_and_wait

EAGER = native.Caller("an eager call")


@effect_p.def_impl
def _effect_impl(*given: Any, site: Site) -> list[Any]:
    with jax.transfer_guard("allow"):  # the user's guard is not for our transfer
        operands, site = site.without_idle_mask(given)
        if len(operands) < len(given) and not given[0]:
            return [jnp.zeros(result.shape, result.stored) for result in site.results or ()]
        if site.per_shard and any(isinstance(x, jax.Array) and len(x.sharding.device_set) > 1 for x in operands):
            return list(_program_of(site)(*operands))
        # JAX may pass a Python number, for example when it differentiates one.
        values = [np.asarray(x, operand.stored) for x, operand in zip(operands, site.operands, strict=True)]
        return _publish(site, _device_of(operands), values)


def _program_of(site: Site) -> Callable[..., Any]:
    """A program with one effect, for operands on several devices that each have the effect."""
    return jit(lambda *operands: effect_p.bind(*operands, site=site))


def _publish(site: Site, device: int, values: list[Any]) -> list[Any]:
    """Publishes an effect, in a program of its own. Returns its results."""
    runtime.waiting.for_plain_programs()
    runtime.waiting.drain_former_order()
    runtime.sites.announce(site)
    if site.results is not None and runtime.streams.current().dispatching:
        # While a function is traced, its program's epoch is already open, and earlier: the trace would wait for itself.
        with runtime.streams.nested_here() as stream:
            return _publish_in(stream, site, device, values)
    return _publish_in(runtime.streams.current(), site, device, values)


def _publish_in(stream: Stream, site: Site, device: int, values: list[Any]) -> list[Any]:
    dispatching = stream.dispatching
    depth, number = len(dispatching), -1
    try:
        number = stream.open(EAGER, dispatching)
        stream.eager[number] = site
        first, epoch, phase, index = map(int, stream.token(number))
        first += domain_number(token_key(site.effect))
        token = (first, epoch, phase, index)
        results: list[Any] = []
        if site.results is None:
            publish(site, token, values, device)
        else:
            results = _call(site, token, values, device, stream, number)
        native.close([(first, epoch, phase, index + bool(site.effect.ordered))], 0)
        native.note(Kind.RETURNED, (first, epoch, 0, 0))
        stream.note_ended(number)
        dispatching.pop()
    except BaseException:
        native.abandon(stream.thread, dispatching, depth)  # first, before a second interrupt can come
        if number >= 0:
            stream.note_ended(number)
        raise
    if config.sync and not dispatching:
        effects_barrier()
    return results


def _device_of(operands: Sequence[Any]) -> int:
    """The device that would run a program with these operands; -1 if several would."""
    arrays = [x for x in operands if isinstance(x, jax.Array)]
    devices = {device for x in arrays if x.committed for device in x.devices()}
    if not devices and (default := jax.config.jax_default_device) is not None:
        devices = {jax.devices(default)[0] if isinstance(default, str) else default}
    devices = devices or {device for x in arrays for device in x.devices()}
    if not devices:
        return _jax.host_device()
    return device_number(devices.pop()) if len(devices) == 1 else ALL_DEVICES


def _call(site: Site, token: tuple[int, ...], values: list[Any], device: int, stream: Stream, number: int) -> list[Any]:
    try:
        results = publish_and_wait(site, token, values, device)
    except RuntimeError:
        if (failure := runtime.failures.take_awaited((stream.thread, number))) is not None:
            raise failure from failure.__cause__
        raise
    return [jnp.asarray(result) for result in results]


def _effect_on_each_device(mesh: Any, *given: Any, site: Site) -> list[Any]:
    """Publishes an effect on each device in a `jax.shard_map` that is evaluated outside of jit. JAX passes the devices'
    values as rows of one array, or as one row for all devices."""
    axes = tuple(axis for axis in mesh.axis_names if axis in jax.sharding.get_abstract_mesh().manual_axes)
    rows = jax.P(axes)

    def region(*given: Any) -> list[Any]:
        return [result[None] for result in effect_p.bind(*(x[0] for x in given), site=site)]

    specs = tuple(rows if len(x) > 1 else jax.P() for x in given)
    region = jax.shard_map(region, mesh=mesh, in_specs=specs, out_specs=rows, axis_names={*axes}, check_vma=False)
    with _jax.outside_of_traces(), jax.transfer_guard("allow"):
        return list(jit(region)(*given))


_jax.rules_in_eager_regions[effect_p] = _effect_on_each_device
