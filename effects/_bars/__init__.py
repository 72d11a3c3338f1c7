"""Progress bars: what is shown of the records of `fx.progress`, on a terminal, in a notebook, or line by line."""

from effects._bars.output import Output as Output
from effects._bars.state import Bar as Bar
from effects._bars.state import bars as bars
