#!/bin/sh
# Re-lock this project's own dependencies (run and development) with hashes.
# Reads pyproject.toml, writes requirements/*.txt. Nothing of this machine's pip settings leaks in.
set -eu
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
common="--no-config --universal --python-version 3.10 --generate-hashes --no-header --no-annotate --quiet ${LOCK_ARGS:-}"
# shellcheck disable=SC2086 # the options are meant to split
env -u PIP_CONFIG_FILE -u PIP_FIND_LINKS "$uv" pip compile $common pyproject.toml --extra uv --group build -o requirements/run.txt
# shellcheck disable=SC2086
env -u PIP_CONFIG_FILE -u PIP_FIND_LINKS "$uv" pip compile $common pyproject.toml --extra uv --group build --group dev -c requirements/run.txt -o requirements/dev.txt
# shellcheck disable=SC2086
env -u PIP_CONFIG_FILE -u PIP_FIND_LINKS "$uv" pip compile $common --group host -c requirements/run.txt -o provisioner/host/requirements.txt
