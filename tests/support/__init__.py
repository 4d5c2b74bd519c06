"""What tests share to reach the world outside Python: an engine, base images, package indexes."""
