# What one does with Veena. Every target that compiles needs the C++ store, which is built once into a cache folder (`make rocksdb`).

export CARGO_TARGET_DIR ?= $(HOME)/.cache/veena/target
export ROCKSDB_LIB_DIR ?= $(HOME)/.cache/veena/rocksdb-0.19.0-11.8.1
export ROCKSDB_STATIC ?= 1
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

SEEDS ?= 200
MINUTES ?= 10
NODES ?= 1
ARGS ?=
RUNS ?= 1
BENCH_LONG := parked-polls idle-partitions start-backlog stalled-disk
BENCH_CLUSTER := cluster-latency leader-killed three-nodes batches-elsewhere move-1gib owner-down cluster-idle
BENCH_TENANTS := secured-ratio isolation logins revocation

.PHONY: help dev cluster test lint fmt bench bench-long bench-cluster bench-tenants sim sabotage chaos soak fuzz docs rocksdb tools tools-test

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

dev: rocksdb ## build and start one node on this machine (Ctrl-C stops it)
	cargo build --locked --package veena
	@echo "For the other terminal: alias veena='$(abspath $(CARGO_TARGET_DIR))/debug/veena'"
	@exec $(CARGO_TARGET_DIR)/debug/veena dev $(ARGS)

cluster: rocksdb ## build and start three nodes on this machine (Ctrl-C stops them)
	cargo build --locked --package veena
	@echo "For the other terminal: alias veena='$(abspath $(CARGO_TARGET_DIR))/debug/veena'"
	@exec $(CARGO_TARGET_DIR)/debug/veena dev --nodes 3 $(ARGS)

test: rocksdb tools-test ## every gate: format, lints, tests, documents, tree
	.ci/gates/all

lint: rocksdb tools-test ## format, lints and the tree
	.ci/gates/all 05-tree 10-fmt 20-clippy

fmt: ## format the sources
	cargo fmt --all

bench: rocksdb ## throughput and latency against a bare server on the same machine
	cargo build --locked --release --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/release/veena-bench bench $(ARGS)

bench-long: rocksdb ## the scenarios that take minutes: parked polls, idle partitions, a backlog, a stalled disk (RUNS=1)
	cargo build --locked --release --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/release/veena-bench bench $(BENCH_LONG) --runs $(RUNS) $(ARGS)

bench-cluster: rocksdb ## three nodes on this machine: latency, a killed leader, throughput beside one node, a partition of 1 GiB that moves, an owner that is down, idleness (RUNS=1)
	cargo build --locked --release --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/release/veena-bench bench $(BENCH_CLUSTER) --runs $(RUNS) $(ARGS)

bench-tenants: rocksdb ## what security costs, tenants beside each other, 500 logins at once, rights taken away from who waits (RUNS=1)
	cargo build --locked --release --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/release/veena-bench bench $(BENCH_TENANTS) --runs $(RUNS) $(ARGS)

sim: rocksdb ## simulated crashes over many seeds (SEEDS=200) of one node or, NODES=3, of several on one network, after a look that one seed gives one trace
	cargo run --locked --package veena-loadtest-sim -- meta --nodes $(NODES) --seed 1
	cargo run --locked --package veena-loadtest-sim -- sweep --nodes $(NODES) --seeds $(SEEDS) $(ARGS)

sabotage: rocksdb ## bugs planted on purpose, each of which a simulated seed must find, or tests of the engine
	.ci/gates/55-sabotage $(ARGS)

chaos: rocksdb tools-test ## real nodes under kill -9, stops, failed syncs, full disks and, NODES=3, cut cables, with a ledger (MINUTES=10)
	cargo build --locked --package veena --package veena-loadtest-driver
	$(CARGO_TARGET_DIR)/debug/veena-bench chaos --nodes $(NODES) --minutes $(MINUTES) $(ARGS)

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
