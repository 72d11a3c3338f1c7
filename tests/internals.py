"""What tests look at that is private: if it moves, this is the one place that says where it is."""

from effects import _jax as _jax
from effects import cli
from effects._api.log import Event as Event
from effects._model import wire as _wire
from effects._model.content import content_from as content_from
from effects._model.effect import domain_number as domain_number
from effects._model.function import HostFunction as HostFunction
from effects._model.line import Line as Line
from effects._model.line import fill as fill
from effects._model.numbering import Numbering as Numbering
from effects._model.operand import Operand as Operand
from effects._model.operand import Static as Static
from effects._model.operand import read_operand as read_operand
from effects._model.operand import stored_dtype as stored_dtype
from effects._model.operand import take_arguments as take_arguments
from effects._model.plan import Plan as Plan
from effects._model.plan import Style as Style
from effects._model.primitive import effect_p as effect_p
from effects._model.record import Records as Records
from effects._model.record import as_numpys as as_numpys
from effects._model.site import Site as Site
from effects._model.site import site_from as site_from
from effects._model.text import NativeRows as NativeRows
from effects._model.text import field_of as field_of
from effects._model.text import plan_of_line as plan_of_line
from effects._model.text import print_options as print_options
from effects._model.where import Where as Where
from effects._model.where import where_called as where_called
from effects._model.wire import write_header as write_header
from effects.dispatch.runtime import supervisor as supervisor
from effects.dispatch.runtime.background import Workers as Workers
from effects.dispatch.runtime.failures import Failures as Failures
from effects.dispatch.runtime.failures import first_of_each_line as first_of_each_line
from effects.dispatch.runtime.failures import log_failure as log_failure
from effects.dispatch.runtime.outputs import may_wait as may_wait
from effects.dispatch.runtime.runtime import runtime as runtime
from effects.dispatch.runtime.streams import Numbers as Numbers
from effects.dispatch.runtime.streams import StreamHost as StreamHost
from effects.dispatch.runtime.streams import Streams as Streams
from effects.extensions.custom_calls.api import Attributes as Attributes
from effects.extensions.handlers import jsonl as jsonl
from effects.extensions.handlers import list as list_handler
from effects.extensions.progress.bars import Bar as Bar
from effects.extensions.progress.bars import Bars as Bars
from effects.extensions.progress.bars import bars as bars
from effects.extensions.progress.bars import line_of as line_of
from effects.lowering.native_module import native as native
from effects.lowering.sites import KnownSites as KnownSites
from effects.lowering.sites import known_sites as known_sites
from effects.lowering.tokens import find_rule as find_rule

_cli, handler_of_lists, wire = cli, list_handler, _wire
