"""The sites of records: a process knows those that it has lowered, and rebuilds others from what programs say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

import effects as fx
from effects.lowering.host.sites import KnownSites, known_sites


def test_site_is_rebuilt_from_its_description():
    """With those of the records that its records consist of, as in the log of a compiled kernel."""

    def kernel(x_ref, out_ref):
        fx.print("{}", x_ref[0, 0])
        out_ref[...] = x_ref[...]

    call = pl.pallas_call(kernel, jax.ShapeDtypeStruct((8, 128), jnp.float32))
    before = set(known_sites._sites)
    exported = fx.export(fx.jit(call), platforms=["tpu"])(jnp.zeros((8, 128)))  # which has the sites
    log = next(site for number, site in known_sites._sites.items() if number not in before and site.content.inner_sites)
    elsewhere = KnownSites()
    rebuilt = elsewhere.find(log.id)
    assert (rebuilt.id, rebuilt.where, rebuilt is log) == (log.id, log.where, False)
    (inner,) = rebuilt.content.inner_sites
    assert elsewhere.get(inner.id).content == known_sites.get(inner.id).content
    assert elsewhere.find(log.id) is rebuilt and exported.platforms == ("tpu",)
