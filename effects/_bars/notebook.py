"""Bars in a notebook: a widget where tqdm and ipywidgets are installed, else one line of text that changes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from effects._bars.lines import line_of

if TYPE_CHECKING:
    from effects._bars.state import Bar

_MODULE = "ipykernel.iostream"
"""Where the type of a notebook's output comes from."""


def is_notebook(stream: Any) -> bool:
    return type(stream).__module__ == _MODULE


class Notebook:
    """Shows each bar in the cell whose program it is of."""

    def __init__(self, stream: Any):
        self._stream = stream
        widgets = all(importlib.util.find_spec(name) is not None for name in ("tqdm", "ipywidgets"))
        self._show = _show_widget if widgets else _show_text

    def show(self, bars: list[Bar]) -> None:
        for bar in bars:
            self._show(bar)

    def write(self, text: str, bars: list[Bar]) -> None:
        self._stream.write(text)

    def leave(self, bar: Bar, others: list[Bar]) -> None:
        self._show(bar)
        if hasattr(bar.view, "close"):
            bar.view.close()


def _show_widget(bar: Bar) -> None:
    from tqdm.notebook import tqdm

    if bar.view is None:
        bar.view = tqdm(total=bar.total, initial=bar.first, desc=bar.description or None, postfix=bar.metrics or None)
    if bar.has_begun_anew:
        bar.view.reset(bar.total)
        bar.has_begun_anew = False
    bar.view.total = bar.total
    bar.view.set_postfix_str(bar.metrics, refresh=False)
    bar.view.update(bar.done - bar.view.n)


def _show_text(bar: Bar) -> None:
    from IPython.display import display

    text = {"text/plain": line_of(bar)}
    if bar.view is None:
        bar.view = display(text, raw=True, display_id=True)
    else:
        bar.view.update(text, raw=True)
