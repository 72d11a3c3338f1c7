"""Side effects in JAX programs, in the right order, at almost no cost.

import effects as fx
"""

import importlib as _importlib
import pkgutil as _pkgutil
import typing as _typing

__path__ = _pkgutil.extend_path(__path__, __name__)  # in a source tree, the native module is where it was installed

from effects import _jax
from effects._api.callback import callback as callback
from effects._api.check import check as check
from effects._api.config import Config as Config
from effects._api.config import config as config
from effects._api.error_if import error_if as error_if
from effects._api.log import log as log
from effects._api.print import print as print
from effects._api.print_grad import print_grad as print_grad
from effects._api.progress import Progress as Progress
from effects._api.progress import progress as progress
from effects._api.registry import register_effect as register_effect
from effects._api.registry import registered_effects as registered_effects
from effects._api.targets import register_custom_call as register_custom_call
from effects._errors import BarrierTimeout as BarrierTimeout
from effects._errors import CheckError as CheckError
from effects._errors import CustomCallError as CustomCallError
from effects._errors import EffectError as EffectError
from effects._errors import FormatError as FormatError
from effects._errors import FutureError as FutureError
from effects._errors import MissingTokenRule as MissingTokenRule
from effects._errors import NotDifferentiable as NotDifferentiable
from effects._jax import patches as _patches
from effects._jax.patches import patches as patches
from effects._model.effect import Effect as Effect
from effects._model.functions import register_callback as register_callback
from effects._model.record import Record as Record
from effects.dispatch.calling.export import export as export
from effects.dispatch.calling.exported import Exported as Exported
from effects.dispatch.calling.exported import deserialize as deserialize
from effects.dispatch.calling.jit import jit as jit
from effects.dispatch.draining.barrier import effects_barrier as effects_barrier
from effects.dispatch.draining.cells import follow_cells as _follow_cells
from effects.dispatch.draining.observe import add_handler as add_handler
from effects.dispatch.draining.observe import capture as capture
from effects.dispatch.draining.observe import remove_handler as remove_handler
from effects.dispatch.draining.stats import stats as stats

if _typing.TYPE_CHECKING:  # what `_LATER` imports
    from effects import handlers as handlers
    from effects import testing as testing
    from effects._api.async_callback import async_callback as async_callback
    from effects._api.async_collectives import all_gather_start as all_gather_start
    from effects._api.async_collectives import all_to_all_start as all_to_all_start
    from effects._api.async_collectives import ppermute_start as ppermute_start
    from effects._api.async_collectives import psum_scatter_start as psum_scatter_start
    from effects._api.async_collectives import psum_start as psum_start
    from effects._api.async_references import copy_start as copy_start
    from effects._api.asynchronous import Future as Future
    from effects._api.asynchronous import async_done as async_done
    from effects._api.asynchronous import async_start as async_start
    from effects._api.asynchronous import async_update as async_update
    from effects._api.custom_call import custom_call as custom_call
    from effects._api.pallas_call import pallas_call as pallas_call
    from effects._api.paths import cmake_dir as cmake_dir
    from effects._api.paths import include_dir as include_dir
    from effects._api.progress_loops import fori_loop_with_progress as fori_loop_with_progress
    from effects._api.progress_loops import scan_with_progress as scan_with_progress
    from effects._api.progress_loops import while_loop_with_progress as while_loop_with_progress
    from effects._version import __version__ as __version__
    from effects.dispatch.calling.compare import Comparison as Comparison
    from effects.dispatch.calling.inspect import InspectedOperation as InspectedOperation
    from effects.dispatch.calling.inspect import Inspection as Inspection
    from effects.dispatch.calling.inspect import inspect as inspect
    from effects.dispatch.calling.library_jits import filter_jit as filter_jit
    from effects.dispatch.calling.library_jits import nnx_jit as nnx_jit
    from effects.dispatch.testing import assert_order as assert_order
    from effects.handlers import ConsoleHandler as ConsoleHandler
    from effects.handlers import CsvHandler as CsvHandler
    from effects.handlers import JsonLinesHandler as JsonLinesHandler
    from effects.handlers import ListHandler as ListHandler
    from effects.handlers import LoguruHandler as LoguruHandler
    from effects.handlers import NpzHandler as NpzHandler
    from effects.handlers import ParquetHandler as ParquetHandler
    from effects.handlers import StructlogHandler as StructlogHandler
    from effects.handlers import TensorBoardHandler as TensorBoardHandler
    from effects.handlers import WandbHandler as WandbHandler
else:  # type checkers would take it to have every name

    def __getattr__(name: str) -> _typing.Any:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _importlib.import_module(_LATER[name])
        value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
        globals()[name] = value
        return value


_LATER = {
    "handlers": "effects.handlers",
    "ConsoleHandler": "effects.handlers",
    "CsvHandler": "effects.handlers",
    "JsonLinesHandler": "effects.handlers",
    "ListHandler": "effects.handlers",
    "LoguruHandler": "effects.handlers",
    "NpzHandler": "effects.handlers",
    "ParquetHandler": "effects.handlers",
    "StructlogHandler": "effects.handlers",
    "TensorBoardHandler": "effects.handlers",
    "WandbHandler": "effects.handlers",
    "testing": "effects.testing",
    "async_callback": "effects._api.async_callback",
    "all_gather_start": "effects._api.async_collectives",
    "all_to_all_start": "effects._api.async_collectives",
    "ppermute_start": "effects._api.async_collectives",
    "psum_scatter_start": "effects._api.async_collectives",
    "psum_start": "effects._api.async_collectives",
    "copy_start": "effects._api.async_references",
    "Future": "effects._api.asynchronous",
    "async_done": "effects._api.asynchronous",
    "async_start": "effects._api.asynchronous",
    "async_update": "effects._api.asynchronous",
    "custom_call": "effects._api.custom_call",
    "cmake_dir": "effects._api.paths",
    "include_dir": "effects._api.paths",
    "fori_loop_with_progress": "effects._api.progress_loops",
    "scan_with_progress": "effects._api.progress_loops",
    "while_loop_with_progress": "effects._api.progress_loops",
    "pallas_call": "effects._api.pallas_call",
    "__version__": "effects._version",
    "Comparison": "effects.dispatch.calling.compare",
    "InspectedOperation": "effects.dispatch.calling.inspect",
    "Inspection": "effects.dispatch.calling.inspect",
    "inspect": "effects.dispatch.calling.inspect",
    "filter_jit": "effects.dispatch.calling.library_jits",
    "nnx_jit": "effects.dispatch.calling.library_jits",
    "assert_order": "effects.dispatch.testing",
}
"""By name, the module that is imported when it is first asked for: few programs use it."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


_jax.hide_frames_in(__path__[0])
_patches.apply()  # all that is changed in JAX
_follow_cells()

__all__ = [
    "BarrierTimeout",
    "CheckError",
    "Comparison",
    "Config",
    "ConsoleHandler",
    "CsvHandler",
    "CustomCallError",
    "Effect",
    "EffectError",
    "Exported",
    "FormatError",
    "Future",
    "FutureError",
    "InspectedOperation",
    "Inspection",
    "JsonLinesHandler",
    "ListHandler",
    "LoguruHandler",
    "MissingTokenRule",
    "NotDifferentiable",
    "NpzHandler",
    "ParquetHandler",
    "Progress",
    "Record",
    "StructlogHandler",
    "TensorBoardHandler",
    "WandbHandler",
    "add_handler",
    "all_gather_start",
    "all_to_all_start",
    "assert_order",
    "async_callback",
    "async_done",
    "async_start",
    "async_update",
    "callback",
    "capture",
    "check",
    "cmake_dir",
    "config",
    "copy_start",
    "custom_call",
    "deserialize",
    "effects_barrier",
    "error_if",
    "export",
    "filter_jit",
    "fori_loop_with_progress",
    "include_dir",
    "inspect",
    "jit",
    "log",
    "nnx_jit",
    "pallas_call",
    "patches",
    "ppermute_start",
    "print",
    "print_grad",
    "progress",
    "psum_scatter_start",
    "psum_start",
    "register_callback",
    "register_custom_call",
    "register_effect",
    "registered_effects",
    "remove_handler",
    "scan_with_progress",
    "stats",
    "while_loop_with_progress",
]
