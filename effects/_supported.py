"""Refuses a version of JAX that is not supported, before private names of JAX are imported."""

import jax

OLDEST = 0, 10
TOO_NEW = 0, 13

MSG_JAX = (
    "token-effects cannot be imported with JAX {version}. It uses private names of JAX, and supports the versions "
    "from {oldest} on and before {too_new}. Install one of these: pip install 'jax>={oldest},<{too_new}'. "
    "See docs/reference/compatibility.md."
)

if not OLDEST <= jax.__version_info__[:2] < TOO_NEW:
    _texts = {"oldest": ".".join(map(str, OLDEST)), "too_new": ".".join(map(str, TOO_NEW))}
    raise ImportError(MSG_JAX.format(version=jax.__version__, **_texts), name="effects")
