"""The files of JAX's tests in which it matters what compiles a function: all that is not arithmetic."""

CHOSEN = frozenset(
    f"{name}_test.py"
    for name in (
        *("api", "api_util", "core", "errors", "jax_jit", "jaxpr_util", "pickle", "traceback", "x64_context"),
        *("aot", "export", "extend", "jax_to_ir", "layout", "memories", "multi_device", "pjit", "pmap", "shard_map"),
        *("compilation_cache", "logging", "monitoring", "name_stack", "source_info", "transfer_guard", "xla_metadata"),
        *("batching", "generated_fun", "jet", "lax_autodiff", "lax_control_flow", "lax_vmap_op", "ode", "optimizers"),
        *("custom_api", "custom_linear_solve", "custom_partitioning", "custom_root", "ffi", "hijax", "stateful_rng"),
        *("buffer_callback", "debug_nans", "debugger", "debugging_primitives", "jaxpr_effects", "python_callback"),
        *("checkify", "error_check", "key_reuse", "mutable_array", "state", "stax", "experimental_rnn", "nn"),
        *("control_deps", "garbage_collection_guard", "scheduling_groups", "shard_alike"),
    )
)
