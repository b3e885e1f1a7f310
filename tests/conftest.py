"""What all tests share."""

import os
import signal

import hypothesis

# Tests compile many small programs that run for microseconds: compile them fast.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)

# Shells start what runs in the background with interrupts, which tests send, ignored.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "softsolve", derandomize=True, deadline=None, max_examples=40, database=None
)
hypothesis.settings.load_profile("softsolve")
