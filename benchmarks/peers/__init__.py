"""The layers of other libraries, given the fastest solvers there are for them."""
