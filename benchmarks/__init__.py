"""Speed, memory and size, as ratios against a peer in one run. See docs/benchmarks.md."""
