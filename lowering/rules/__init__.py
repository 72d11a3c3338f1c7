"""What primitives need that a holder cannot say.

Importing this package loads every module that gives a rule to a table here or to one of JAX's; those for what few
programs have once it is imported, see `later.py`.
"""

from effects.lowering import batching as batching
from effects.lowering import control_flow as control_flow
from effects.lowering import derivatives as derivatives
from effects.lowering import effect as effect
from effects.lowering import shard_map as shard_map
from effects.lowering.emit import custom_call as custom_call
from effects.lowering.rules import later as later
