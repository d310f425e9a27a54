"""Experiments of the paper that `mayfly train` does not run; bench/lifetime and people start them."""
