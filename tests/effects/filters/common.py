"""What tests of filters share."""

from __future__ import annotations

import itertools

import jax
import numpy as np

import effects as fx

P = jax.P


def new_title():
    """A title that no line has had: lines with the same title, and the same place, have one filter."""
    return f"line {next(_numbers)}:"


_numbers = itertools.count()


def mesh():
    return jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])


def sharded(x, *spec):
    return jax.device_put(x, jax.NamedSharding(mesh(), P(*spec)))


def texts_of(f, *args):
    """What `f` shows, without titles, once all is out. Functions that it calls show nothing."""
    with fx.capture(suppress=True) as records:
        jax.block_until_ready(f(*args))
        fx.effects_barrier(timeout=120)
    return [record.text.rpartition(": ")[2] for record in records if record.effect != "callback"]


def site_of(title):
    """What `fx.sites` says of the line with this title."""
    (site,) = [site for site in fx.sites() if site.title.startswith(title)]
    return site


def counts_of(title):
    site = site_of(title)
    return site.count, site.shown


def loop(n, body):
    """A loop whose body has effects only."""
    jax.lax.fori_loop(0, n, lambda i, _: body(i), None)


def by_device(records):
    """The numbers that each device shows."""
    shown = {}
    for record in records:
        shown.setdefault(record.device, []).append(int(np.asarray(record.args[0])))
    return shown
