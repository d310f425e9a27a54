# Thin: every target calls the tool that does the work.
export PATH := $(CURDIR)/.venv/bin:$(PATH):$(HOME)/.cargo/bin

# Warnings are errors where the sources are checked: newer compilers, from Rust 1.97 on, show theirs.
DENY = $$(rustc --version | awk -F. '$$2 < 97 { print "-D warnings" }')
API = RUSTDOCFLAGS="$(DENY)" cargo doc --workspace --no-deps --document-private-items --quiet

.DEFAULT_GOAL := help
.PHONY: help setup build checked tests_built format lint test flaky suites programs soak packages bench demo demo_libraries demo_command figures docs findings

help: # the list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## install what is missing: Debian packages, .venv, Rust (fast when nothing is)
	@./setup

build: setup ## target/release/mayfly and the libraries
	cargo build --release --workspace

format: setup ## rewrite Rust and Python sources in the repository's style
	cargo fmt --all
	ruff format --quiet .

lint: setup ## formatting, lints and API docs; every warning is an error
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- $(DENY)
	ruff check --quiet .
	ruff format --check --quiet .
	$(API)

checked: setup # lints, and the tests' own build, beside the build, whose last minutes keep one processor busy
	@$(MAKE) --no-print-directory -j2 $(if $(ROOM),lint,tests_built) build

tests_built: lint # cargo takes turns in a folder of artefacts: after the lints
	cargo test --workspace --no-run --quiet

test: checked ## all tests that fit in minutes; ROOM=vm one room's, K=oom those of that name
	tests/run $(if $(ROOM),--room $(ROOM)) $(if $(K),-k $(K))

flaky: checked ## tests again and again, half of the rounds under load: ROOM=heap K=NAME ROUNDS=30
	tests/run --rounds $(or $(ROUNDS),30) $(if $(ROOM),--room $(ROOM)) $(if $(K),-k $(K))

suites: build ## other projects' test suites, with and without the heap (long)
	heap/tests/suites

programs: build ## hundreds of Debian's programs with the heap and with automatic merging preloaded (as root, long): SUITE=trixie RESUME=yes
	deploy/programs $(or $(SUITE),forky) --layer heap --smoke 400 --pypi 50 --autopkgtests 100 $(if $(RESUME),--resume)
	deploy/programs $(or $(SUITE),forky) --layer merge --smoke 200 --pypi 50 $(if $(RESUME),--resume)

soak: build ## random operations for long, fuzzing, and VMs on kernels that check themselves (hours)
	fuzz/run
	heap/tests/stress --seconds 1800
	MODEL_CASES=1000 cargo test -p mayfly_heap_core --test model
	MAYFLY_SOAK=1 heap/tests/run -n 4 -k "random_events or setting"
	merge/tests/run --soak
	kernel/tests/run --soak --kernel 6.12
	kernel/tests/run --soak --kernel 7.3
	vm/tests/run --mode hotmem
	vm/tests/run --mode ranges --linux 7.3
	vm/tests/run --steps 5000 -k model_and_vm
	vm/tests/run --mode hotmem --steps 5000 -k model_and_vm
	bench/vm/soak
	MAYFLY_SOAK=1 worker/tests/run -k "kills or soak or histories"
	MAYFLY_HISTORIES=10000 cargo test --release -p worker-snapshot --test histories
	MAYFLY_SOAK=1 train/tests/run
	deploy/aarch64 --soak
	MEMENTO_OPERATIONS=100000000 cargo test -p memento --test agree
	sim/rtl/run --operations 1000000
	sim/rtl/run --programs
	sim/rtl/run --faults
	sim/image/check
	sim/tests/mutants
	deploy/reproducible

packages: setup ## builds all packages and images into target/packages, and checks them; BINARIES=FOLDER has the command
	deploy/packages $(if $(BINARIES),--binaries $(BINARIES))
	deploy/crates
	deploy/licences
	deploy/builder
	MAYFLY_PACKAGES_BUILT=$(CURDIR)/target/packages $(if $(BINARIES),MAYFLY_BINARIES=$(abspath $(BINARIES))) \
		deploy/tests/run

demo: ## Lambda functions under a bursty load, plainly and on Mayfly, side by side
	@./setup demo
	@$(MAKE) --no-print-directory -j2 demo_libraries demo_command
	ln -f target/demo-libraries/libmayfly_*.so target/demo/
	MAYFLY_COMMAND=$(CURDIR)/target/demo/mayfly bench/worker/demo

demo_libraries: # a profile of its own: cargo builds one profile in one process
	cargo build --profile demo-libraries -p mayfly_heap -p mayfly_merge -p mayfly_merge_auto -p mayfly_rest

demo_command:
	cargo build --profile demo -p mayfly --no-default-features

bench: build ## every comparison with other systems; results in bench/results
	bench/heap/run
	bench/heap/count
	bench/heap/cpu
	bench/heap/servers
	bench/merge/run
	bench/vm/run
	bench/lifetime/run
	bench/worker/run
	bench/worker/demo --keep
	bench/node/run
	worker/tests/dispatch
	bench/sim/run

docs: ## the pages and the Python API as a site: target/site/html, and the crates': target/doc; any warning is an error
	deploy/site/build
	$(API)

figures: build ## draw the figures in docs from bench/results, and write docs/numbers from them
	bench/heap/figures
	bench/merge/figures
	bench/vm/figures
	bench/lifetime/figures
	bench/worker/figures
	bench/sim/figures
	bench/figures

findings: ## behaviour of others' libraries that surprised us: whether each is still so
	for one in findings/*.sh; do "$$one" || exit 1; done
