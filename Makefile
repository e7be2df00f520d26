# Everything starts here. Python 3.11 and make are all a machine needs; the rest comes from the locks.
PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python

.PHONY: help env python front-end up test test-fast test-long test-cluster check fmt bench bench-peers docs sbom audit pictures lock runtimes data clean

help:             ## List the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 16

env: python       ## Create or refresh .venv from the lock files
	@$(PYTHON) tools/environment.py

python:           ## Check that Python is installed
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: install python3, or name one with PYTHON=..." >&2; exit 1; }

front-end: env    ## Bundle the TypeScript sources into static/dist
	@$(PY) tools/front_end.py

up: python        ## Start the whole platform on this machine
	@$(PYTHON) tools/environment.py runtime build
	@$(PY) tools/front_end.py
	@$(PY) manage.py up $(ARGS)

test: front-end   ## Run the tests that a change must pass
	@$(PY) tools/run_tests.py $(ARGS)

test-fast: front-end ## Run the everyday suite only
	@$(PY) tools/run_tests.py everyday $(ARGS)

test-long: front-end ## Run every suite, the slow forms too
	@$(PY) tools/run_tests.py long $(ARGS)

test-cluster: front-end ## Run the suite that needs a Kubernetes API server; builds one the first time
	@$(BIN)/pytest -n 0 -m cluster $(ARGS)

bench: front-end  ## Measure every published figure again (long), or those in ARGS="start year"
	@$(PY) tools/measure.py $(ARGS)

bench-peers: front-end ## Measure against Slurm (installs Debian's where missing, as root) and Ray Jobs
	@$(PY) tools/measure.py slurm ray_jobs

docs: env         ## Put the measured figures, the job spec's fields and who may do what into their pages
	@$(PY) tools/figures.py
	@$(PY) tools/spec_reference.py
	@$(PY) tools/permissions.py

check: env        ## Run the checks: format, lint, words, types, layers, migrations, scripts
	@$(PY) tools/run_tests.py checks

fmt: env          ## Format, and fix what can be fixed automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/djhtml --tabwidth 2 templates

sbom: env         ## Print a bill of materials (CycloneDX) from the locks
	@$(PY) tools/sbom.py

audit: env        ## Look for known vulnerabilities of all that is locked; ADVISORIES names downloaded databases
	@$(PY) tools/audit.py $(ADVISORIES)

pictures: front-end ## Take the README's picture again, from the browser test
	@folder=$$(mktemp -d) && LUTHIER_PICTURES=$$folder $(BIN)/pytest -q -n 0 -m browser -k digits tests/browser/test_journey.py \
	  && mv $$folder/job.png docs/images/job.png; code=$$?; rm -rf $$folder; exit $$code

lock: env         ## Re-lock after a change of requirements/*.in
	@for group in bootstrap runtime dev build go; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --custom-compile-command "make lock" requirements/$$group.in -o requirements/$$group.txt || exit 1; done
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command "make lock" bench/peers/ray.in -o bench/peers/ray.txt

runtimes: env     ## Re-lock the runtimes of jobs after a change of examples/runtimes/*.in
	@for source in examples/runtimes/*.in; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --custom-compile-command "make runtimes" $$source -o $${source%.in}.txt || exit 1; done

data: python      ## Fetch the data of the MNIST examples into .luthier/datasets
	@$(PYTHON) tools/environment.py runtime build
	@$(PY) -m examples.data.fetch mnist

clean:            ## Remove what `make` installed and built, but no data
	rm -rf .venv node_modules static/dist
