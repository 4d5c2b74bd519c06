"""An hpccm recipe for an image comparable to the default cell: compiler, Python, locked wheels."""
# ruff: noqa: F821 - hpccm runs a recipe with its own names in scope

Stage0 += comment("comparable to torch2.0.1-cu118-py310-ubuntu22.04")
Stage0 += baseimage(image="ubuntu:22.04", _as="base")
Stage0 += packages(ospackages=["g++", "gcc", "python3", "python3-dev", "python3-venv"])
Stage0 += python(python2=False, devel=True)
Stage0 += copy(src="lockfiles/", dest="/lock/")
Stage0 += pip(requirements="requirements.txt", pip="pip3")
Stage0 += environment(variables={"PATH": "/opt/env/bin:$PATH"})
Stage0 += label(metadata={"org.opencontainers.image.title": "torch2.0.1"})
Stage0 += user(user="10001")
