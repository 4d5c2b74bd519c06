"""The conda half: locked by conda-lock through our own solver executable, installed by hash.

Only `rattler.py` (solving) and `worker.py` (installing) import py-rattler, and both run in
processes of their own: it can crash an interpreter that is about to end.
"""
