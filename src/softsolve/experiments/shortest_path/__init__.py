"""Shortest paths on terrain maps: a network that sees costs, learned from paths."""
