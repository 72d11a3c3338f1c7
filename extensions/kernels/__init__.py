"""Effects in Pallas kernels. Its rules are loaded once Pallas has been imported."""

from typing import Any

from effects import _jax
from effects._config import config
from effects._jax import patches
from effects._model.content import described_later

_PAGE = "docs/guide/kernels.md"

described_later("kernel_log", "effects.extensions.kernels.log")
config.listen(lambda settings: _jax.set_kernel_options(checks_bounds=settings.bounds_checks))


def _load_rules() -> None:
    from effects.extensions.kernels import rules as rules


_jax.when_imported(patches.KERNELS, _load_rules)


def _thread_kernels_over_meshes() -> None:
    from effects.lowering.tokens import register_token_rule

    @register_token_rule(_jax.mesh_kernel_primitive())
    def thread(ctx: Any, tokens: Any, *args: Any, **params: Any) -> Any:
        from effects.extensions.kernels import rules  # which may be being imported, and import this primitive's module

        return rules.thread_mesh_kernel(ctx, tokens, *args, **params)


_jax.when_imported(_jax.MESH_KERNELS, _thread_kernels_over_meshes)
