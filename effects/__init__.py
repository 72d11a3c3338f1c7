"""Side effects in JAX programs, in the right order, at almost no cost.

    import effects as fx

Names that fewer programs use are in `effects.asynchronous`, `effects.kernels`, `effects.native`, `effects.extend`,
`effects.handlers` and `effects.testing`. Nearly all of them are found under `fx.` too.
"""

import pkgutil as _pkgutil
import typing as _typing

__path__ = _pkgutil.extend_path(__path__, __name__)  # from a source tree: the native module is in the installed package

from effects import _supported as _supported  # isort: split

from effects import _jax, _lazy
from effects import extensions as extensions
from effects._api.callback import callback as callback
from effects._api.check import check as check
from effects._api.check import error_if as error_if
from effects._api.log import log as log
from effects._api.print import print as print
from effects._api.print import print_grad as print_grad
from effects._config import Config as Config
from effects._config import config as config
from effects._errors import BarrierTimeout as BarrierTimeout
from effects._errors import CheckError as CheckError
from effects._errors import CheckErrors as CheckErrors
from effects._errors import CustomCallError as CustomCallError
from effects._errors import CustomCallErrors as CustomCallErrors
from effects._errors import EffectError as EffectError
from effects._errors import EffectErrors as EffectErrors
from effects._errors import FormatError as FormatError
from effects._errors import FutureError as FutureError
from effects._errors import MissingTokenRule as MissingTokenRule
from effects._errors import NotDifferentiable as NotDifferentiable
from effects._jax import patches as _patches
from effects._jax.patches import patches as patches
from effects._model.effect import Effect as Effect
from effects._model.effect import register_effect as register_effect
from effects._model.effect import registered_effects as registered_effects
from effects._model.function import register_callback as register_callback
from effects._model.record import Record as Record
from effects.dispatch.calling.install import install as install
from effects.dispatch.calling.install import uninstall as uninstall
from effects.dispatch.calling.jit import jit as jit
from effects.dispatch.runtime.cells import follow_cells as _follow_cells
from effects.dispatch.runtime.observe import add_handler as add_handler
from effects.dispatch.runtime.observe import capture as capture
from effects.dispatch.runtime.observe import remove_handler as remove_handler
from effects.dispatch.runtime.runtime import effects_barrier as effects_barrier
from effects.dispatch.runtime.runtime import stats as stats

if _typing.TYPE_CHECKING:  # the names that `_LATER` imports
    from effects import asynchronous as asynchronous
    from effects import extend as extend
    from effects import handlers as handlers
    from effects import kernels as kernels
    from effects import native as native
    from effects import runs as runs
    from effects import testing as testing
    from effects._version import __version__ as __version__
    from effects.asynchronous import Future as Future
    from effects.asynchronous import InspectedOperation as InspectedOperation
    from effects.asynchronous import Inspection as Inspection
    from effects.asynchronous import all_gather_start as all_gather_start
    from effects.asynchronous import all_to_all_start as all_to_all_start
    from effects.asynchronous import async_callback as async_callback
    from effects.asynchronous import async_done as async_done
    from effects.asynchronous import async_start as async_start
    from effects.asynchronous import async_update as async_update
    from effects.asynchronous import copy_start as copy_start
    from effects.asynchronous import inspect as inspect
    from effects.asynchronous import ppermute_start as ppermute_start
    from effects.asynchronous import psum_scatter_start as psum_scatter_start
    from effects.asynchronous import psum_start as psum_start
    from effects.dispatch.calling.library_jits import filter_jit as filter_jit
    from effects.dispatch.calling.library_jits import nnx_jit as nnx_jit
    from effects.extensions.breakpoints.api import breakpoint as breakpoint
    from effects.extensions.export.export import export as export
    from effects.extensions.export.exported import Exported as Exported
    from effects.extensions.export.exported import deserialize as deserialize
    from effects.extensions.progress.api import Progress as Progress
    from effects.extensions.progress.api import progress as progress
    from effects.extensions.progress.loops import fori_loop_with_progress as fori_loop_with_progress
    from effects.extensions.progress.loops import scan_with_progress as scan_with_progress
    from effects.extensions.runs.recording import record as record
    from effects.extensions.sites.selection import sites as sites
    from effects.extensions.watching.api import watch as watch
    from effects.extensions.watching.found import BadOperand as BadOperand
    from effects.extensions.watching.found import NonFinite as NonFinite
    from effects.handlers import ConsoleHandler as ConsoleHandler
    from effects.handlers import CsvHandler as CsvHandler
    from effects.handlers import JsonLinesHandler as JsonLinesHandler
    from effects.handlers import ListHandler as ListHandler
    from effects.kernels import pallas_call as pallas_call
    from effects.native import cmake_dir as cmake_dir
    from effects.native import custom_call as custom_call
    from effects.native import include_dir as include_dir
    from effects.native import register_custom_call as register_custom_call
    from effects.testing import assert_order as assert_order
else:  # type checkers would accept every name

    def __getattr__(name: str) -> _typing.Any:
        return _lazy.find(__name__, _LATER, name)


_HOMES = {
    "effects.asynchronous": (
        *("asynchronous", "Future", "InspectedOperation", "Inspection", "async_callback", "async_done", "async_start"),
        *("async_update", "all_gather_start", "all_to_all_start", "copy_start", "inspect", "ppermute_start"),
        *("psum_scatter_start", "psum_start"),
    ),
    "effects.extend": ("extend",),
    "effects.handlers": ("handlers", "ConsoleHandler", "CsvHandler", "JsonLinesHandler", "ListHandler"),
    "effects.kernels": ("kernels", "pallas_call"),
    "effects.native": ("native", "cmake_dir", "custom_call", "include_dir", "register_custom_call"),
    "effects.testing": ("testing", "assert_order"),
    "effects.extensions.breakpoints.api": ("breakpoint",),
    "effects.extensions.export.export": ("export",),
    "effects.extensions.export.exported": ("Exported", "deserialize"),
    "effects.extensions.progress.api": ("Progress", "progress"),
    "effects.extensions.progress.loops": ("fori_loop_with_progress", "scan_with_progress"),
    "effects.extensions.runs.recording": ("record",),
    "effects.extensions.sites.selection": ("sites",),
    "effects.extensions.watching.api": ("watch",),
    "effects.extensions.watching.found": ("BadOperand", "NonFinite"),
    "effects.runs": ("runs",),
    "effects._version": ("__version__",),
    "effects.dispatch.calling.library_jits": ("filter_jit", "nnx_jit"),
}
_LATER = _lazy.homes_of(_HOMES)
"""By name, the module that is imported at the name's first use: few programs use it."""


def __dir__() -> list[str]:
    return sorted(__all__)


_jax.hide_frames_in(__path__[0])
_patches.apply()  # all changes of JAX
_follow_cells()

__all__ = [
    "BarrierTimeout",
    "CheckError",
    "EffectError",
    "FormatError",
    "Record",
    "add_handler",
    "asynchronous",
    "breakpoint",
    "callback",
    "capture",
    "check",
    "config",
    "deserialize",
    "effects_barrier",
    "error_if",
    "export",
    "extend",
    "filter_jit",
    "fori_loop_with_progress",
    "handlers",
    "inspect",
    "install",
    "jit",
    "kernels",
    "log",
    "native",
    "nnx_jit",
    "print",
    "print_grad",
    "progress",
    "record",
    "register_callback",
    "remove_handler",
    "runs",
    "scan_with_progress",
    "sites",
    "stats",
    "testing",
    "uninstall",
    "watch",
]
"""The names for everyday use, and the modules with the rest."""
