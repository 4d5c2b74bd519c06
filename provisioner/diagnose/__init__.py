"""From the text of a log to causes and remedies: rules as data, a streaming engine, the matrix."""
