"""Environments on a machine: built from locks, one owner per file, switched as a whole."""
