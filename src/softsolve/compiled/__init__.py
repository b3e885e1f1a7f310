"""The fused route: compiled passes, instance kernels and counter-based noise."""
