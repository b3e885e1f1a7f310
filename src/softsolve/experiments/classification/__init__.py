"""Classifying images, against cross entropy (Section 5.1)."""
