# Commands, each doing all of its own set-up:
#   make run       train a real model inside stated budgets; writes runs/digits/report.html
#   make test      everything CI runs
#   make thorough  what takes too long for CI: hundreds of random models and programs
.PHONY: run test thorough setup clean

CONFIG ?= examples/digits.yaml

run:
	@scripts/setup run
	.venv/bin/frugax run $(CONFIG)

test:
	@scripts/setup dev
	scripts/check

thorough:
	@scripts/setup dev
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 .venv/bin/python -m pytest -q -n 2 -m thorough tests

setup:
	@scripts/setup dev

clean:
	rm -rf .venv .venv-newest .tools runs dist .pytest_cache .ruff_cache
