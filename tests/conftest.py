"""What all tests share."""

import os

import hypothesis

# Tests compile many small programs that run for microseconds: compile them fast.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

hypothesis.settings.register_profile(
    "softsolve", derandomize=True, deadline=None, max_examples=40, database=None
)
hypothesis.settings.load_profile("softsolve")
