# Two commands, each doing all of its own set-up:
#   make run     train a real model inside stated budgets; writes runs/digits/report.html
#   make test    everything CI runs
.PHONY: run test setup clean

CONFIG ?= examples/digits.yaml

run:
	@scripts/setup run
	.venv/bin/frugax run $(CONFIG)

test:
	@scripts/setup dev
	scripts/check

setup:
	@scripts/setup dev

clean:
	rm -rf .venv .venv-newest .tools runs dist .pytest_cache .ruff_cache
