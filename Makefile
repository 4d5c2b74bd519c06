# Documented entries; `make` alone lists them. Each one prepares .venv first (see tools/bootstrap.sh).
.DEFAULT_GOAL := help
.PHONY: help demo render test check format lock-deps bench acceptance clean run-deps dev-deps lint

VENV := .venv/bin
SHELL_SCRIPTS := .ci/run tools/test-engine $(wildcard tools/*.sh)
DOCKERFILES = $(wildcard docker/*/Dockerfile)

help: ## list these entries
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: run-deps ## install and render the default CUDA 11.8 cell (no root needed)
	@$(VENV)/provision render --cuda 11.8
	@echo '(the command is in the virtual environment: . .venv/bin/activate)'

render: run-deps ## write every cell of docker/ and lockfiles/ again
	$(VENV)/provision render --again

test: dev-deps lint ## everything that this machine can run: lint, format, types, all tests
	$(VENV)/pytest

check: dev-deps lint ## the quick half: lint, format, types, unit and golden tests
	$(VENV)/pytest tests/unit tests/golden

lint:
	$(VENV)/ruff check
	$(VENV)/ruff format --check
	$(VENV)/mypy
	$(VENV)/mypy --explicit-package-bases tests $(wildcard benchmarks/*.py)
	@if [ -x $(VENV)/shellcheck ]; then echo '$(VENV)/shellcheck' $(SHELL_SCRIPTS); $(VENV)/shellcheck $(SHELL_SCRIPTS); \
	else echo 'shellcheck skipped: no wheel of it for this machine'; fi
	$(if $(DOCKERFILES),$(VENV)/hadolint $(DOCKERFILES))

format: dev-deps ## format the code and apply safe lint fixes
	$(VENV)/ruff format
	$(VENV)/ruff check --fix

lock-deps: dev-deps ## lock this project's own dependencies again (requirements/)
	tools/lock-deps.sh

bench: dev-deps ## measure speed and memory (benchmarks/)
	$(VENV)/python -m benchmarks

acceptance: dev-deps ## build and judge the real images, keep their reports (needs tools/test-engine)
	$(VENV)/python tools/acceptance.py

clean: ## remove everything that is made here, the virtual environment and the test engine included
	tools/test-engine clean
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

run-deps:
	@tools/bootstrap.sh run

dev-deps:
	@tools/bootstrap.sh dev
