"""Side effects in JAX programs, in the right order, at almost no cost.

import effects as fx
"""

# The two packages below, through their public faces. Whichever of the three is imported first, this file runs first.
import lowering as _lowering  # noqa: F401
from dispatch._barrier import effects_barrier as effects_barrier
from dispatch._drain import stats as stats
from dispatch._export import Exported as Exported
from dispatch._export import deserialize as deserialize
from dispatch._export import export as export
from dispatch._jit import jit as jit
from dispatch._observe import add_handler as add_handler
from dispatch._observe import capture as capture
from dispatch._observe import remove_handler as remove_handler
from dispatch.testing import assert_order as assert_order
from effects import _jax
from effects._callback import callback as callback
from effects._config import Config as Config
from effects._config import config as config
from effects._custom_call import custom_call as custom_call
from effects._errors import BarrierTimeout as BarrierTimeout
from effects._errors import CustomCallError as CustomCallError
from effects._errors import EffectError as EffectError
from effects._errors import FormatError as FormatError
from effects._errors import MissingTokenRule as MissingTokenRule
from effects._errors import NotDifferentiable as NotDifferentiable
from effects._functions import register_callback as register_callback
from effects._handlers import ConsoleHandler as ConsoleHandler
from effects._handlers import CsvHandler as CsvHandler
from effects._handlers import JsonLinesHandler as JsonLinesHandler
from effects._handlers import ListHandler as ListHandler
from effects._handlers import NpzHandler as NpzHandler
from effects._log import log as log
from effects._paths import cmake_dir as cmake_dir
from effects._paths import include_dir as include_dir
from effects._print import print as print
from effects._print_grad import print_grad as print_grad
from effects._record import Record as Record
from effects._registry import register_effect as register_effect
from effects._registry import registered_effects as registered_effects
from effects._targets import register_custom_call as register_custom_call
from effects._types import Effect as Effect

_jax.hide_frames_in(__path__[0])

__all__ = [
    "BarrierTimeout",
    "Config",
    "ConsoleHandler",
    "CsvHandler",
    "CustomCallError",
    "Effect",
    "EffectError",
    "Exported",
    "FormatError",
    "JsonLinesHandler",
    "ListHandler",
    "MissingTokenRule",
    "NotDifferentiable",
    "NpzHandler",
    "Record",
    "add_handler",
    "assert_order",
    "callback",
    "capture",
    "cmake_dir",
    "config",
    "custom_call",
    "deserialize",
    "effects_barrier",
    "export",
    "include_dir",
    "jit",
    "log",
    "print",
    "print_grad",
    "register_callback",
    "register_custom_call",
    "register_effect",
    "registered_effects",
    "remove_handler",
    "stats",
]
