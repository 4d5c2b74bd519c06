"""Checks of this host and of an environment on it: small pure functions over facts and matrix."""
