# Set-up is part of every target: `make demo` and `make test` are all a new machine needs.
PYTHON ?= python3
PIP    := .venv/bin/python -m pip --disable-pip-version-check --quiet
READY  := .venv/.ready

.PHONY: demo test check docs format lock clean

demo: $(READY)  ## a whole experiment in two minutes
	.venv/bin/shoestring demo

# tests start many processes, and wait for them: three on two cores, forked from one that has loaded what they need
test: $(READY)  ## everything that needs no GPU
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: $(READY)  ## lint, format, types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

docs: $(READY)  ## the documentation as a site, in site/; opens with no network
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

format: $(READY)
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# torch, and beside it all else in the versions of lock.txt, which pip need not resolve, so that nothing pulls another
# torch; then what the build of torch needs besides
$(READY): pyproject.toml constraints.txt lock.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	test -x .venv/bin/python || $(PYTHON) -m venv .venv
	$(PIP) install pip==26.3  # takes two thirds of the time of the one that comes with Python 3.11
	$(PIP) install --no-deps -c constraints.txt torch & first=$$!; $(PIP) install --no-deps -r lock.txt -e . && wait $$first
	$(PIP) install --no-warn-conflicts -c constraints.txt -c lock.txt torch
	touch $(READY)

lock:  ## resolve all versions anew, and write lock.txt
	rm -rf .venv
	$(PYTHON) -m venv .venv
	$(PIP) install -c constraints.txt torch numpy
	$(PIP) install -c constraints.txt -e '.[report,board,track,docs,dev]'
	$(PIP) install --no-deps pomegranate==1.1.2  # an oracle; what else it asks for is not needed
	$(PIP) install --no-deps lm_eval==0.4.13  # half of what it asks for is for single tasks
	.venv/bin/python .ci/lock.py
	touch $(READY)

clean:
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
