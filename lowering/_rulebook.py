"""Loads every module that gives rules, to a table here or to one of JAX's.

`effects/__init__.py` imports this one, since it cannot rely on `lowering/__init__.py`: if that is imported first, it is
still at its first line while `effects` is loaded.
"""

from lowering import _batched as _batched
from lowering import _custom_call as _custom_call
from lowering import _differentiated as _differentiated
from lowering import _emit as _emit
from lowering import _jax_callbacks as _jax_callbacks
from lowering import _linear_solve as _linear_solve
from lowering import _region as _region
from lowering import _while as _while
