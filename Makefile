# Commands, each doing all of its own set-up:
#   make run       train a real model inside stated budgets; writes runs/digits/report.html
#   make test      everything that CI runs for each change
#   make thorough  what takes longer, once a day: the newest JAX, types checked at run
#                  time, slow pages, notebooks, hundreds of random models and programs
#   make coverage  lines and branches of src that the tests run
#   make site      build the site into dist/site and dist/frugax-site.zip
#   make notebooks run the notebooks and keep their outputs and pictures in them
#   make golden    write the golden tables; CHECK=1 compares, PART=watch takes one part
#   make results   run each package's benchmark beside its peers; one table, one JSON
#   make wheel     build the package into dist/
#   make release-check  build, then install and test it in clean environments
.PHONY: run test thorough coverage golden site notebooks results wheel release-check \
  setup clean

CONFIG ?= examples/digits.yaml

run:
	@scripts/setup run
	.venv/bin/frugax run $(CONFIG)

test:
	@scripts/setup dev
	scripts/check

# Packages that say the shapes and dtypes of arrays, and what checks them at run time.
TYPED = frugax.allocate,frugax.causal,frugax.compat.causal_training,frugax.compress,$\
  frugax.report,frugax.models.to_jax,frugax.run,frugax.train,frugax.tropical,$\
  frugax.watch,type_checker.typechecked

thorough:
	@FRUGAX_SETUP_TPU=1 scripts/setup dev
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 XLA_FLAGS=--xla_force_host_platform_device_count=8 \
	  .venv/bin/python -m pytest -q -n 2 --dist loadfile -m thorough
	.venv/bin/python -m pytest -q -n 2 --dist loadfile --jaxtyping-packages=$(TYPED)
	scripts/newest-jax

coverage:
	@scripts/setup dev
	scripts/measure_coverage

# What users get, as tables in tests/golden: `CHECK=1` prints what moved and writes nothing.
golden:
	@scripts/setup golden
	.venv/bin/python -m tests.golden $(PART) $(if $(CHECK),--check) \
	  $(if $(CASE),--case "$(CASE)") $(if $(JOBS),--jobs $(JOBS))

# `FULL=1` runs each benchmark as long as the packages' pages state; `ROWS=timed` those that
# need a quiet machine, `ROWS=counted` the others. A stopped run goes on where it was.
results:
	@scripts/setup dev
	.venv/bin/python -m benchmarks.results $(if $(FULL),--full) $(if $(ROWS),--rows $(ROWS))

site:
	@scripts/build_site

notebooks:
	@scripts/setup dev
	@"$$(scripts/tools notebooks)"/python scripts/run_notebooks.py

wheel:
	@scripts/setup dev
	@"$$(scripts/tools release)"/pyproject-build --installer uv --outdir dist

release-check:
	@scripts/setup dev
	@RELEASE_TOOLS="$$(scripts/tools release)" .venv/bin/python scripts/release_check.py

setup:
	@scripts/setup dev

clean:
	rm -rf .venv .venv-newest .tools runs dist .pytest_cache .ruff_cache
