"""What tests look at that is private: if it moves, this is the one place that says where it is."""

from effects import _jax as _jax
from effects import _wire, cli
from effects._api import jax_callbacks as jax_callbacks
from effects._api.attributes import Attributes as Attributes
from effects._api.log import Event as Event
from effects._bars.lines import line_of as line_of
from effects._bars.state import Bar as Bar
from effects._bars.state import Bars as Bars
from effects._bars.state import bars as bars
from effects._model.arguments import take_arguments as take_arguments
from effects._model.format import fill as fill
from effects._model.functions import HostFunction as HostFunction
from effects._model.line import Line as Line
from effects._model.native_rows import NativeRows as NativeRows
from effects._model.native_rows import plan_of_text as plan_of_text
from effects._model.native_text import Plan as Plan
from effects._model.native_text import Style as Style
from effects._model.native_text import field_of as field_of
from effects._model.numbering import Numbering as Numbering
from effects._model.operand import Operand as Operand
from effects._model.operand import Static as Static
from effects._model.operand import read_operand as read_operand
from effects._model.operand import stored_dtype as stored_dtype
from effects._model.primitive import effect_p as effect_p
from effects._model.print_options import print_options as print_options
from effects._model.record import Records as Records
from effects._model.site import Site as Site
from effects._model.site import site_from as site_from
from effects._model.where import Where as Where
from effects._model.where import where_called as where_called
from effects._wire import write_header as write_header
from effects.dispatch.draining import stall as stall
from effects.dispatch.draining import watchdog as watchdog
from effects.dispatch.draining.failure_log import first_of_each_line as first_of_each_line
from effects.dispatch.draining.failures import Failures as Failures
from effects.dispatch.draining.runtime import runtime as runtime
from effects.dispatch.streams.outputs import may_wait as may_wait
from effects.dispatch.streams.table import Streams as Streams
from effects.dispatch.streams.tokens import PlacedTokens as PlacedTokens
from effects.handlers import _columns as _columns
from effects.handlers import _growing_zip as _growing_zip
from effects.handlers import _pieces as _pieces
from effects.handlers import jsonl as jsonl
from effects.handlers import list as list_handler
from effects.handlers._series import values_of as values_of
from effects.handlers.merge import LogError as LogError
from effects.handlers.merge import merge as merge
from effects.handlers.merge import text_of as text_of
from effects.lowering.host.native import native as native
from effects.lowering.host.sites import KnownSites as KnownSites
from effects.lowering.host.sites import known_sites as known_sites
from effects.lowering.passes.thread import find_rule as find_rule
from effects.lowering.passes.without_records import with_silent_records as with_silent_records
from effects.lowering.passes.without_records import without_records as without_records

_cli, handler_of_lists, wire = cli, list_handler, _wire
