"""One folder with everything that a cell needs where there is no network."""
