"""The paper's experiments, for the command ``softsolve run``."""
