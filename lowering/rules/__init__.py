"""What primitives need that a holder cannot say: one module for each.

Importing this package loads every module that gives a rule to a table here or to one of JAX's; those for what few
programs have once it is imported, see `later.py`.
"""

from effects.lowering.emit import custom_call as custom_call
from effects.lowering.emit import platforms as platforms
from effects.lowering.passes import batching as batching
from effects.lowering.passes import differentiation as differentiation
from effects.lowering.rules import cond as cond
from effects.lowering.rules import custom_functions as custom_functions
from effects.lowering.rules import effect as effect
from effects.lowering.rules import later as later
from effects.lowering.rules import linear_solve as linear_solve
from effects.lowering.rules import shard_map as shard_map
from effects.lowering.rules import while_ as while_
