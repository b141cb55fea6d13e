# The few commands of this project. Arguments go through ARGS: make test ARGS="-k lease -x"

.DEFAULT_GOAL := help
.PHONY: help run test prove screens mutants model chaos interleavings bench bench-peers settings lint \
	format clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s%s\n", $$1, $$2}' Makefile

run: ## Set up what is missing, start everything, show a document answered; Ctrl-C ends it
	@local/setup.sh run
# exec, so that its parent is make itself: it ends when make does, however that happens.
	@exec .venv/bin/python -m local --parent $$PPID $(ARGS)

# More processes than cores, since most tests wait: for a deadline, for a lease, for a program.
PROCESSES = 6

test: ## Run every test on a private MariaDB and a private MySQL, sweeps sampled
	@local/setup.sh test
	@exec .venv/bin/python -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)

# What takes a seed or a law of its own is not in it: make chaos, make mutants, make model.
prove: ## Run whole what make test samples: every order, every random input, each on all servers
	@local/setup.sh test
	@WHOLE_SWEEPS=1 exec .venv/bin/python -m pytest -n $(PROCESSES) --dist worksteal \
		-m "sweep or either_server" $(ARGS)

model: ## Check the protocol in every order of steps with spin; ARGS=WITHOUT_TOKEN breaks a law
	@local/setup.sh test
	@exec proof/model/check.sh $(ARGS)

chaos: ## Break everything under load, compare answers with bills: make chaos SEED=7 MINUTES=3
	@local/setup.sh test
	@exec .venv/bin/python -m proof.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),1) $(ARGS)

interleavings: ## Run pairs of transactions in COUNT sampled orders each: make interleavings COUNT=1000
	@local/setup.sh test
	@exec .venv/bin/python -m proof.interleavings --seed $(or $(SEED),1) --count $(or $(COUNT),300) $(ARGS)

screens: ## Show each page in each state, as pictures in docs/screens
	@local/setup.sh test
	@exec .venv/bin/python -m proof.screens $(ARGS)

bench: ## Measure the product against its server, figures and curves: make bench ARGS="--quick"
	@local/setup.sh test
	.venv/bin/pip install --quiet --editable '.[bench]'
	@exec .venv/bin/python -m bench $(ARGS)

bench-peers: ## Install the peers in .run/peers and measure each: make bench-peers ARGS="dramatiq arq"
	@local/setup.sh test
	@exec .venv/bin/python -m bench.peers $(ARGS)

settings: ## Write docs/settings.md from the settings classes
	@local/setup.sh test
	@exec .venv/bin/python -m proof.settings_page

mutants: ## Take out, one by one, the lines that uphold a law, and see a test fail; ARGS="law" for some
	@local/setup.sh test
	@exec .venv/bin/python -m proof.mutants $(ARGS)

lint: ## Check layout, habits and types
	@local/setup.sh test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy -p partway -p local -p bench -p tests -p proof

format: ## Lay out the code as lint wants it
	@local/setup.sh test
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean: ## Delete what was made in this tree, the database of make run included
	rm -rf .run .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
