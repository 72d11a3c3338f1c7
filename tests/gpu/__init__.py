"""Programs on NVIDIA's GPUs: on one, where there is one, and on CPUs with a stand-in for its driver."""

import pytest

# Modules of tests that other modules collect: pytest rewrites the assertions of those alone that it collects itself.
pytest.register_assert_rewrite("tests.gpu.programs", "tests.gpu.operations")
