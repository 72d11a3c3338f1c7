"""`fx.inspect`: the asynchronous operations of a program, and the copies that XLA makes beside them."""
