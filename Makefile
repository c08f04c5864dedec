# What one does with Veena. Every target that compiles needs the C++ store, which is built once into a cache folder (`make rocksdb`).

export CARGO_TARGET_DIR ?= $(HOME)/.cache/veena/target
export ROCKSDB_LIB_DIR ?= $(HOME)/.cache/veena/rocksdb-0.19.0-11.8.1
export ROCKSDB_STATIC ?= 1

SEEDS ?= 200
MINUTES ?= 10
ARGS ?=

.PHONY: help dev test lint fmt bench sim chaos soak fuzz docs rocksdb tools tools-test

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

dev: rocksdb ## build and start one node on this machine (Ctrl-C stops it)
	cargo run --locked --quiet --package veena -- dev $(ARGS)

test: rocksdb tools-test ## every gate: format, lints, tests, documents, tree
	.ci/gates/all

lint: rocksdb tools-test ## format, lints and the tree
	.ci/gates/all 05-tree 10-fmt 20-clippy

fmt: ## format the sources
	cargo fmt --all

bench: rocksdb ## throughput and latency against a bare server on the same machine
	cargo build --locked --release --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/release/veena-bench bench $(ARGS)

sim: rocksdb ## simulated crashes over many seeds (SEEDS=200)
	cargo run --locked --package veena-loadtest-sim -- sweep --seeds $(SEEDS) $(ARGS)

chaos: rocksdb ## a real node under kill -9, stops and faults, with a ledger (MINUTES=10)
	cargo build --locked --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/debug/veena-bench chaos --minutes $(MINUTES) $(ARGS)

soak: rocksdb ## steady load with a ledger (MINUTES=10)
	cargo build --locked --release --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/release/veena-bench soak --minutes $(MINUTES) $(ARGS)

fuzz: rocksdb ## fuzz every decoder of bytes from disk or network (MINUTES=10)
	.ci/fuzz $(MINUTES)

docs: rocksdb ## the reference of every crate, as HTML
	cargo doc --locked --workspace --no-deps
	@echo "open $(CARGO_TARGET_DIR)/doc/veena_broker/index.html"

rocksdb: tools ## build the C++ store once, into a cache folder
	@.ci/rocksdb

tools:
	@.ci/tools build

tools-test:
	@.ci/tools test
