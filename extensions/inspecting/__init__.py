"""`fx.inspect`: the asynchronous operations of a program, and the copies that XLA makes beside them."""

_PAGE = "docs/guide/asynchronous.md#look-at-what-is-under-way"
