"""Compile verification: `probe` runs inside the target, `report` is the model of what it says."""
