"""Reproducible PyTorch environments on NVIDIA GPUs, with torch.compile proved to work."""

__version__ = "0.1.0"
