"""What several devices add to the oracle.

The language has four statements more. A `Region` is a `shard_map`, or what JAX makes one of: every device runs its
block by itself and has effects of its own, which come by (their number in the device's own order, device). If it is
over one axis of two, devices that differ along the other are replicas of each other. Such a group, here a *part*, runs
the block as one device would, and its first device publishes for it. A `Talk` is a collective inside a region, and a
`TalkInFlight` one in two parts. A `Whole` prints an array that is sharded over the devices, as one or shard by shard.

Some regions are *loose*: of these only each device's own order is compared, with records that were captured.

A case is a sequence of dispatches by one thread, or several such sequences by as many threads. A dispatch is of a
program on one device, or on several: a list of them in any order, with meshes of one or two axes. Between dispatches
there may be effects outside of programs, and barriers.
"""
