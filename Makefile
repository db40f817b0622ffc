# Every target sets itself up: all it needs is Python 3.11 or newer, with venv, and make.

PYTHON ?= $(shell for python in python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v "$$python" && break; done)

BIN := .venv/bin
# One more than there are cores, because some tests wait for subprocesses.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || sysctl -n hw.ncpu) + 1 )))
SETTINGS := pyproject.toml constraints.txt

# The environment variables also reach the isolated environment in which the package is built:
# newer releases of pip read the second one there, older ones the first.
INSTALL = PIP_CONSTRAINT="$$PIP_CONSTRAINT constraints.txt" \
	PIP_BUILD_CONSTRAINT="$$PIP_BUILD_CONSTRAINT constraints.txt" \
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile

# The CPU build of torch is 0.2 GB to download, that for CUDA 2 GB and more: make demo CUDA=1.
CPU_TORCH := https://download.pytorch.org/whl/cpu

define have_python
test -n "$(PYTHON)" || { \
		echo "skipless needs Python 3.11 or newer, but found neither python3.11 nor a python3 that is new enough." >&2; \
		echo "Install it, or pass its path: make PYTHON=/path/to/python3.11" >&2; exit 1; }
endef

# Without cached bytecode, each of the many processes would compile all of torch that it imports,
# which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help demo test front-door faults soak test-core check bench bench-peers docs jax-example reproduce results demo-results figures audit sbom clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST)

demo: .venv/.train  ## train 50 layers without shortcuts beside a ResNet, in three minutes
	$(BIN)/python -m skipless.runs.demo out

test: .venv/.dev .venv/.oracles  ## run every test and doctest, in parallel by file
	@$(MAKE) --no-print-directory .venv-jax-example/.ready || echo "Tests against kfac-jax are skipped."
	$(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses $(WORKERS)

front-door: .venv/.dev  ## paste every block of README and five pages into new clones, as a newcomer would
	$(BIN)/python tests/front_door.py $(if $(PIP),,--seed .venv)

faults: .venv/.dev  ## fail, delay or kill runs at each of their system calls, resume and compare
	$(BIN)/python tests/faults/run.py

soak: .venv/.dev  ## train for two hours (MINUTES=120) under slow disks, jumping clocks, kills and NaN
	$(BIN)/python tests/soak.py --minutes $(or $(MINUTES),120)

test-core: .venv-base/.test  ## run the tests of core on the base install, without any framework
	.venv-base/bin/python -m pytest --quiet tests/core src/skipless/core

check: .venv/.dev  ## check formatting, lint and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright --threads --pythonpath $(BIN)/python

bench: .venv/.bench  ## time the solver, TReLU, the training loop and K-FAC against other libraries
	$(BIN)/python benchmarks/solver.py
	$(BIN)/python benchmarks/activation.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/kfac.py

bench-peers: .venv-peers/.ready  ## compare with dks, kfac-jax and singd; writes docs/benchmarks.md
	PYTHONPATH=src .venv-peers/bin/python benchmarks/peers.py docs/benchmarks.md

jax-example: .venv-jax-example/.ready  ## train 50 layers in JAX, with kfac-jax and with SGD
	PYTHONPATH=src .venv-jax-example/bin/python examples/jax_kfac/train.py

docs: .venv/.docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reproduce: .venv/.train  ## run every table and figure of the paper at the smallest scale
	$(BIN)/skipless reproduce all --scale smoke --workers 1 --output out/smoke

results: .venv/.train  ## write docs/results.md and README's tables from the files in results
	$(BIN)/python docs/results_page.py

demo-results: demo  ## run the demo, and put its table and picture into README and docs
	cp out/demo.md results/demo.md
	cp out/demo.svg docs/images/demo.svg
	$(BIN)/python docs/results_page.py

figures: .venv/.train  ## draw the figures of README and docs/idea.md
	$(BIN)/python docs/idea_figures.py

audit: .venv/.dev .venv-supply/.ready  ## look up known vulnerabilities of everything that is installed
	.venv-supply/bin/python .ci/audit.py .venv/lib/python3*/site-packages

sbom: .venv/.dev .venv-supply/.ready  ## write a bill of materials (CycloneDX) to dist/sbom.json
	@mkdir -p dist
	.venv-supply/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file dist/sbom.json $(BIN)/python

clean:  ## remove everything that the other targets created
	rm -rf .venv .venv-base .venv-peers .venv-jax-example .venv-supply build dist out site .hypothesis .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp for each extra; an environment is created only if it is missing. The extra `dev` includes
# `train` and `docs`.
.venv/.dev: INCLUDED := .venv/.train .venv/.docs

define install_extra
@echo "Installing skipless[$*] into $(@D)"
	@$(INSTALL) --editable '.[$*]'
	@touch $@ $(INCLUDED)
endef

.venv/.%: $(SETTINGS) | .venv/bin/python
	$(install_extra)

.venv-base/.%: $(SETTINGS) | .venv-base/bin/python
	$(install_extra)

# Tests compare K-FAC with curvlinops. Its dependencies include torchvision, which its K-FAC does not
# need and which is no use with the CPU build of torch.
.venv/.oracles: constraints.txt | .venv/.dev
	@$(INSTALL) --no-deps curvlinops-for-pytorch einconv einops linear_operator
	@touch $@

# Code that needs a JAX older than ours has its own environments, with the versions in these files.
.venv-jax-example/.ready: examples/jax_kfac/requirements.txt
.venv-peers/.ready: benchmarks/peers/requirements.txt examples/jax_kfac/requirements.txt

.venv-supply/.ready: .ci/supply.txt

.venv-%/.ready:
	@$(have_python)
	@echo "Installing $< into .venv-$*"
	@"$(PYTHON)" -m venv .venv-$*
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@

.venv/bin/python .venv-base/bin/python:
	@$(have_python)
	@"$(PYTHON)" -m venv $(@D:/bin=) || { rm -rf $(@D:/bin=); exit 1; }
	@$(if $(CUDA)$(findstring base,$@),,$@ -m pip install --quiet --disable-pip-version-check --no-compile \
		--retries 0 --constraint constraints.txt --no-deps torch --extra-index-url $(CPU_TORCH) 2>/dev/null \
		|| echo "The CPU build of PyTorch is out of reach; pip chooses a build later.")
