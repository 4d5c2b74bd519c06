"""A GPU host: what it is (facts.py, which runs there) and what speaks against a cell (gate.py)."""
