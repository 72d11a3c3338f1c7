"""Effects outside of any program: each is an epoch of its own, which ends after those of programs still running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from effects import _jax
from effects._config import config
from effects._model.device import device_number
from effects._model.effect import domain_numbers, effect_p, token_key
from effects._model.site import SIZE, Site
from effects._model.wire import ALL_DEVICES, Kind
from effects.dispatch.runtime.runtime import effects_barrier, runtime
from effects.dispatch.runtime.streams import Stream
from effects.lowering.native_module import native
from effects.lowering.sites import publish, publish_and_wait

EAGER = native.Caller("an eager call")


@effect_p.def_impl
def _effect_impl(*given: Any, site: Site) -> list[Any]:
    with jax.transfer_guard("allow"):  # the guard is for the user's transfers; this one is ours
        operands, site = site.without_idle_mask(given)
        # JAX may bring a Python number where it has none of its own: differentiating one, say.
        if site.per_shard and not site.lanes:
            records = _records_of_shards(operands)
            site = site.in_shards
        else:
            values = [np.asarray(x, operand.stored) for x, operand in zip(operands, site.operands, strict=True)]
            records = [(_device_of(operands), values)]
        return _publish(site, records)[-1]


def _publish(site: Site, records: Sequence[tuple[int, Sequence[Any]]]) -> list[list[Any]]:
    """Publishes (device, operands) of each as an effect, in a program of their own. Returns the results of each."""
    runtime.waiting.for_plain_programs()
    runtime.waiting.drain_former_order()
    runtime.sites.announce(site)
    if site.results is not None and runtime.streams.current().dispatching:
        # While a function is traced its program's epoch is open, and comes first: its trace would wait for itself.
        with runtime.streams.nested_here() as stream:
            return _publish_in(stream, site, records)
    return _publish_in(runtime.streams.current(), site, records)


def _publish_in(stream: Stream, site: Site, records: Sequence[tuple[int, Sequence[Any]]]) -> list[list[Any]]:
    depth = len(stream.dispatching)
    try:
        number = stream.open(EAGER, stream.dispatching)
        stream.eager[number] = site
        first, epoch, phase, index = map(int, stream.token(number))
        (number_of_domain,) = domain_numbers([token_key(site.effect)]).values()
        stream_of_token = first + number_of_domain
        results: list[list[Any]] = []
        for device, values in records:
            token = (stream_of_token, epoch, phase, index)
            if site.results is None:
                publish(site, token, values, device)
                results.append([])
            else:
                results.append(_call(site, token, values, device, stream, number))
            index += bool(site.effect.ordered)
        native.close([(stream_of_token, epoch, phase, index)], 0)
        native.note(Kind.RETURNED, (stream_of_token, epoch, 0, 0))
        stream.dispatching.pop()
    except BaseException:
        native.abandon(stream.thread, stream.dispatching, depth)
        raise
    if config.sync and not stream.dispatching:
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


def _records_of_shards(operands: Sequence[Any]) -> list[tuple[int, list[np.ndarray]]]:
    """Each shard of arrays that lie on several devices, by the first of these that has it: (device, what its record
    has), by device."""
    sharded = [x for x in operands if isinstance(x, jax.Array) and len(x.sharding.device_set) > 1]
    devices = [shard.device for shard in sharded[0].addressable_shards] if sharded else [jax.local_devices()[0]]
    records: dict[Any, tuple[int, list[np.ndarray]]] = {}
    for device in devices:
        shards = [_shard_on(x, device) for x in operands]
        bounds = [bound for _, where in shards for bound in where]
        wholes = [n for x in operands for n in np.shape(x)]
        axes = [(stop - start, start, stop, whole) for (start, stop), whole in zip(bounds, wholes, strict=True)]
        row = [np.array(axes, SIZE).T.reshape(-1)] if axes else []
        records.setdefault(tuple(bounds), (device_number(device), [*row, *(np.asarray(value) for value, _ in shards)]))
    return sorted(records.values(), key=lambda record: record[0])


def _shard_on(x: Any, device: Any) -> tuple[Any, list[tuple[int, int]]]:
    """What a device has of an array, and where that begins and ends along each axis; or all of it."""
    for shard in x.addressable_shards if isinstance(x, jax.Array) and len(x.sharding.device_set) > 1 else ():
        if shard.device == device:
            return shard.data, [slice_.indices(n)[:2] for slice_, n in zip(shard.index, x.shape, strict=True)]
    return x, [(0, n) for n in np.shape(x)]


def _call(site: Site, token: tuple[int, ...], values: list[Any], device: int, stream: Stream, number: int) -> list[Any]:
    try:
        results = publish_and_wait(site, token, values, device)
    except RuntimeError:
        if (failure := runtime.failures.take_awaited((stream.thread, number))) is not None:
            raise failure from failure.__cause__
        raise
    return [jnp.asarray(result) for result in results]


def _effect_on_each_device(mesh: Any, *given: Any, site: Site) -> list[Any]:
    """In a `jax.shard_map` that is evaluated outside of jit, where JAX gives us what the devices have as rows of one
    array, or one row for all."""
    manual = [axis for axis in mesh.axis_names if axis in jax.sharding.get_abstract_mesh().manual_axes]
    first = tuple(slice(None) if axis in manual else 0 for axis in mesh.axis_names)
    devices = list(mesh.devices[first].flat)
    in_order = sorted(devices, key=lambda device: device.id)
    with _jax.outside_of_traces(), jax.transfer_guard("allow"):
        operands, site = site.without_idle_mask(given)
        stored = [operand.stored for operand in site.operands]
        rows = [
            [np.asarray(_row_on(x, device), kind) for x, kind in zip(operands, stored, strict=True)]
            for device in in_order
        ]
        records = list(zip(map(device_number, in_order), rows, strict=True))
        results = dict(zip(in_order, _publish(site, records), strict=True))
        sharding = jax.NamedSharding(mesh, jax.P(tuple(manual)))
        return [
            jax.device_put(np.stack(rows), sharding)
            for rows in zip(*(results[device] for device in devices), strict=True)
        ]


_jax.rules_in_eager_regions[effect_p] = _effect_on_each_device


def _row_on(x: Any, device: Any) -> Any:
    (shard,) = [shard for shard in x.addressable_shards if shard.device == device]
    # Along axes of the mesh that are not the region's, a row may lie on several devices.
    return shard.data[0] if shard.data.shape[1:] == x.shape[1:] else x[shard.index[0].start or 0]
