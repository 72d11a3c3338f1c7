"""Breakpoints: a program waits, on all its devices, while the user looks at the values of its frames."""

from effects.extensions.breakpoints import api as api

_PAGE = "docs/how-to/breakpoint.md"
