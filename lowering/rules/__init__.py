"""What primitives need that a holder cannot say: one module for each.

Importing this package loads every module that gives a rule to a table here or to one of JAX's. `effects/__init__.py`
imports it, since it cannot rely on `lowering/__init__.py`: if that is imported first, it is still at its first line
while `effects` is loaded.
"""

from lowering.emit import custom_call as custom_call
from lowering.emit import native as native
from lowering.passes import batching as batching
from lowering.passes import differentiation as differentiation
from lowering.rules import custom_functions as custom_functions
from lowering.rules import effect as effect
from lowering.rules import jax_callbacks as jax_callbacks
from lowering.rules import linear_solve as linear_solve
from lowering.rules import shard_map as shard_map
from lowering.rules import while_ as while_
