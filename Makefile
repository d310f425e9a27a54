# Thin: every target calls the tool that does the work.
export PATH := $(CURDIR)/.venv/bin:$(PATH):$(HOME)/.cargo/bin

.DEFAULT_GOAL := help
.PHONY: help setup build format lint test suites soak bench demo figures

help: ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## install what is missing: Debian packages, .venv, Rust (fast when nothing is)
	@./setup

build: setup ## target/release/mayfly and the libraries
	cargo build --release --workspace

format: setup ## rewrite Rust and Python sources in the repository's style
	cargo fmt --all
	ruff format --quiet .

lint: setup ## formatting and lints; every warning is an error
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	ruff check --quiet .
	ruff format --check --quiet .

test: lint build ## all tests that fit in minutes
	cargo test --workspace
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p heap --release --test loom_remote --test loom_available
	heap/tests/run
	bench/heap/smoke
	merge/tests/run
	merge/auto/tests/run
	python/tests/run
	bench/merge/smoke
	bench/lifetime/smoke
	train/tests/run
	worker/tests/run
	bench/worker/smoke
	sim/tests/run
	sim/shim/tests/run
	sim/programs/go/tests/run
	kernel/tests/run
	vm/tests/run

suites: build ## other projects' test suites, with and without the heap (long)
	heap/tests/suites

soak: build ## random operations for long: heap, page store, and VMs on kernels that check themselves (hours)
	heap/tests/stress --seconds 1800
	merge/tests/run --soak
	kernel/tests/run --soak
	bench/vm/soak
	MAYFLY_SOAK=1 worker/tests/run -k kills
	MEMENTO_OPERATIONS=100000000 cargo test -p memento --test agree
	sim/image/check
	sim/tests/mutants

demo: build ## Lambda functions under a bursty load, plainly and on Mayfly, side by side
	bench/worker/demo

bench: build ## every comparison with other systems; results in bench/results
	bench/heap/run
	bench/heap/count
	bench/heap/servers
	bench/merge/run
	bench/vm/run
	bench/lifetime/run
	bench/worker/run
	worker/tests/dispatch
	sim/figures/run

figures: build ## draw the figures in docs from bench/results
	bench/heap/figures
	bench/merge/figures
	bench/vm/figures
	bench/lifetime/figures
	bench/worker/figures
	sim/figures/draw
