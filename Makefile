# Common commands. Everything else is plain cargo, go and pytest. scripts/tools.sh installs the pinned tools
# for the tests into a cache outside the tree.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# Sets the variables (MILLPOND_MINIO, …) of the named tools, or of all. Installs missing tools.
tools = tools=$$(scripts/tools.sh $(1)); eval "$$tools"
# A line that names the next section and the time so far, for readers of .ci/run's output.
STARTED := $(shell date +%s)
section = printf '\n=== %s (after %d s) ===\n' "$(1)" $$(( $$(date +%s) - $(STARTED) ))

CLIENTS := embedded-clickhouse/tests/clients

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Run the whole pipeline on this machine (DEMO_SECONDS, DEMO_RATE, DEMO_BUFFER=minio, KEEP=1)
	@$(call tools,libchdb)
	if [[ $${DEMO_BUFFER:-} == minio ]]; then
	    $(call tools,minio)
	fi
	scripts/quietly.sh "building Millpond" target/demo-build.log \
	    cargo build --locked --profile demo --no-default-features --bin millpond --bin embedded-clickhouse
	exec target/demo/millpond demo

.PHONY: tutorial
tutorial: ## Run the store and the ClickHouse of tutorial/README.md until interrupted
	@$(call tools,minio libchdb)
	# MILLPOND_BIN_DIR: a folder of programs that are already built.
	[[ -n $${MILLPOND_BIN_DIR:-} ]] || cargo build --locked --bin millpond --bin embedded-clickhouse
	exec tutorial/start.sh

.PHONY: bench
bench: ## CPU, throughput, latency and memory, compared with the required bounds (5 minutes; MILLPOND_LOGHUB, BENCH_FLAGS)
	@$(call tools,libchdb)
	cargo build --locked --release --bin millpond --bin embedded-clickhouse --bin bench
	exec target/release/bench $(BENCH_FLAGS)

.PHONY: bench-gateways
bench-gateways: ## Latency and requests to a slow store with 1, 4, 16 and 48 gateways (15 minutes; MILLPOND_LOGHUB, BENCH_FLAGS)
	@$(call tools,libchdb)
	cargo build --locked --release --bin millpond --bin embedded-clickhouse --bin bench
	exec target/release/bench --only gateways $(BENCH_FLAGS)

.PHONY: bench-backlog
bench-backlog: ## How fast a consumer drains a backlog of small segments, by its writers (10 minutes; MILLPOND_LOGHUB, BENCH_FLAGS)
	@$(call tools,libchdb)
	cargo build --locked --release --bin millpond --bin embedded-clickhouse --bin bench
	exec target/release/bench --only backlog $(BENCH_FLAGS)

.PHONY: bench-fleet
bench-fleet: ## Requests, dollars and latency of up to 1,000 gateways in virtual time, with faults (10 minutes; BENCH_FLAGS)
	@mkdir -p bench-results
	cargo build --locked -p millpond-simulation --bin fleets
	exec target/debug/fleets --json bench-results/fleets.json $(BENCH_FLAGS)

.PHONY: bench-leader-death
bench-leader-death: ## How soon requests succeed after the death of a shard's leader (3 minutes; BENCH_FLAGS="--linger 250ms")
	@$(call tools,minio python)
	cargo build --locked --release --bin millpond
	export MILLPOND_BIN_DIR=$${MILLPOND_BIN_DIR:-$$PWD/target/release}
	exec "$$MILLPOND_PYTHON" scripts/bench-leader-death.py $(BENCH_FLAGS)

.PHONY: bench-endurance
bench-endurance: ## Whether the memory of gateway, consumer and exporter grows (1 hour; BENCH_FLAGS="--minutes 60 --rate 2000")
	@$(call tools,minio libchdb otelcol python)
	cargo build --locked --release --bin millpond --bin embedded-clickhouse
	export MILLPOND_BIN_DIR=$${MILLPOND_BIN_DIR:-$$PWD/target/release}
	exec "$$MILLPOND_PYTHON" scripts/bench-endurance.py $(BENCH_FLAGS)

.PHONY: bench-unique
bench-unique: ## What deduplication by key costs (5 minutes; BENCH_FLAGS="--records 21000000 --publishers 12", --twice)
	@$(call tools,libchdb)
	cargo build --locked --release --bin millpond --bin embedded-clickhouse
	exec scripts/bench-unique.py $(BENCH_FLAGS)

.PHONY: bench-exporter
bench-exporter: ## CPU of the Collector's exporters: Millpond's, Kafka's, S3's (10 minutes; Java, Maven, MILLPOND_LOGHUB, BENCH_FLAGS)
	@$(call tools,minio kafka)
	mkdir -p target
	(cd otel-exporter/internal/bench && go build -o "$(CURDIR)/target/bench-exporter" .)
	exec target/bench-exporter $(BENCH_FLAGS)

.PHONY: bench-peers
bench-peers: ## Millpond, the clickhouseexporter, Kafka and OpenData Buffer, same bytes and table (15 minutes; MILLPOND_LOGHUB, BENCH_FLAGS)
	@$(call tools,minio libchdb collector python)
	cargo build --locked --release --bin millpond --bin embedded-clickhouse --bin send
	# A system whose programs are missing is left out, and the output says so.
	if command -v java >/dev/null && command -v mvn >/dev/null; then
	    $(call tools,kafka)
	fi
	if cargo build --locked --release --manifest-path bench/peers/opendata/Cargo.toml --target-dir target/peers; then
	    export OPENDATA_PEER=$$PWD/target/peers/release/opendata-peer
	fi
	export MILLPOND_BIN_DIR=$${MILLPOND_BIN_DIR:-$$PWD/target/release}
	exec env PYTHONPATH=tests "$$MILLPOND_PYTHON" scripts/bench-peers.py $(BENCH_FLAGS)

.PHONY: bench-growth
bench-growth: ## Bytes and CPU of a commit and a poll at backlogs of up to a million segments (1 minute)
	@cargo build --locked --release --bin growth
	exec target/release/growth

# Each piece runs alone on one thread, so the figures need neither a quiet machine nor a server.
.PHONY: bench-micro
bench-micro: ## Instructions and CPU time of the hot pieces, compared with BASE=<commit or report> (valgrind, MILLPOND_LOGHUB, BENCH_FLAGS)
	@exec scripts/bench-micro.sh $(BENCH_FLAGS)

.PHONY: test
test: ## Run every test (installs MinIO, a Collector, chDB, … into the cache first)
	@scripts/test.sh

.PHONY: collector
collector: ## Build a Collector with Millpond's exporter (otel-exporter/builder.yaml) and print its path
	@scripts/install-otelcol.sh

.PHONY: tools
tools: ## Install the pinned tools and print their variables
	@scripts/tools.sh

# BUILT=1 skips it: the programs are there.
.PHONY: build
build:
ifndef BUILT
	@$(call section,cargo build)
	# Builds the tests too: their features differ from the programs', and one build serves both.
	cargo build --locked --workspace --all-targets
endif

.PHONY: test-rust
test-rust: build ## Unit, property and integration tests of the crates
	@$(call section,tools)
	$(call tools)
	$(call section,cargo test)
	cargo test --locked --workspace --lib --bins --tests

# Builds all tests once more, with every bug in them. So `make test` runs the tests of the crates here, and not twice.
.PHONY: planted-bugs
planted-bugs: ## Run the tests of the crates, then remove each rule of the protocols in turn (BUGS="fence-ignored …"): a test must fail
	@$(call section,planted bugs)
	$(call tools)
	python3 scripts/planted-bugs.py $(BUGS)

.PHONY: fuzz
fuzz: build ## Fuzz all decoders (FUZZ_RUNS inputs per target, or FUZZ_SECONDS; TARGETS="manifest …")
	@$(call section,fuzz)
	scripts/fuzz.sh $(TARGETS)

.PHONY: test-go
test-go: ## The Go producer and the Collector's exporter, with the race detector
	@$(call tools,minio)
	$(call section,go test)
	# Go's cache does not look at the scripts and golden files, which lie outside the module.
	source scripts/go-env.sh
	cd otel-exporter && CGO_ENABLED=1 go test -race -count=1 ./...

# Each commit has different seeds, derived from its hash. Without git they are always the same.
.PHONY: test-seeds
test-seeds: build ## Run 8,000 seeds of the simulation, different ones for each commit
	@$(call section,seeds of this commit)
	commit=$$(git rev-parse --verify --quiet HEAD || echo 0000000)
	first=$$(( 16#$${commit:0:7} * 100 ))
	target/debug/millpond-simulation run --seeds $$first..$$(( first + 8000 ))

SEEDS ?= 0..20000

.PHONY: simulate
simulate: ## Run seeds of the simulation (SEEDS=0..20000, which take 2 minutes)
	@cargo build --locked --release -p millpond-simulation
	exec target/release/millpond-simulation run --seeds $(SEEDS)

.PHONY: test-clients
test-clients: build ## Public ClickHouse clients against the embedded ClickHouse
	@$(call tools,libchdb python)
	$(call section,clickhouse-go)
	source scripts/go-env.sh
	(cd $(CLIENTS)/go && go test ./...)
	$(call section,clickhouse-connect)
	"$$MILLPOND_PYTHON" -m pytest $(CLIENTS)

.PHONY: test-deploy
test-deploy: build ## The files in deploy/, checked against the program and their consumers' code (Helm, Compose, BuildKit, …)
	@$(call section,deployment)
	source scripts/go-env.sh
	# Go's cache does not see files outside the module, which are all that this tests.
	cd deploy/tests && go test -count=1 ./...

# Tests mostly wait for processes, so several at a time use two cores better. Each worker has its own MinIO and ClickHouse.
.PHONY: test-processes
test-processes: build ## The whole pipeline as processes: MinIO, Collector, gateway, consumer, faults (TEST_WORKERS=5; Kafka with Java 17 and Maven)
	@$(call section,whole-process tests)
	$(call tools)
	if command -v java >/dev/null && command -v mvn >/dev/null; then
	    $(call tools,kafka)
	else
	    echo "NOT TESTED: moving from Kafka needs Java 17 and Maven"
	fi
	"$$MILLPOND_PYTHON" -m pytest tests --ignore tests/cluster --ignore tests/dist --numprocesses $${TEST_WORKERS:-5} --dist worksteal

.PHONY: test-cluster
test-cluster: build ## A real ClickHouse cluster: replicas, ZooKeeper, faults (Java 17, Maven; skipped with a notice without them)
	@$(call section,cluster tests)
	if ! command -v java >/dev/null || ! command -v mvn >/dev/null; then
	    echo "NOT TESTED: the cluster tests need Java 17 and Maven"
	    exit 0
	fi
	$(call tools)
	$(call tools,zookeeper)
	# A worker keeps a file, because the tests of a file share clusters.
	"$$MILLPOND_PYTHON" -m pytest tests/cluster --numprocesses $${TEST_WORKERS:-3} --dist loadfile

.PHONY: dist
dist: ## Build a release into dist/: tarballs, Debian packages, images, chart, checksums (Debian 12; DIST_TARGETS)
	@exec scripts/dist.sh

# Not a part of `make test`: it compiles the program for a release, and needs root and Debian's mmdebstrap and
# systemd-container. DIST=built tests what is in dist/.
.PHONY: test-dist
test-dist: ## Build a release for this machine and run it: the package under systemd, the image (Debian 12, root; DIST=built)
	@$(call section,release)
	$(call tools,libchdb minio python debian)
	[[ $${DIST:-} == built ]] || DIST_TARGETS=$${DIST_TARGETS:-$$(rustc --print host-tuple)} scripts/dist.sh
	cargo build --locked --release --bin embedded-clickhouse
	rm -rf target/dist/bin
	mkdir -p target/dist/bin
	tar -xzf "$$(ls dist/millpond-*-"$$(uname -m)"-linux-gnu.tar.gz)" -C target/dist/bin --strip-components=1
	cp target/release/embedded-clickhouse target/dist/bin
	MILLPOND_BIN_DIR=$$PWD/target/dist/bin "$$MILLPOND_PYTHON" -m pytest tests/dist

.PHONY: advisories
advisories: ## Check the crates against RustSec's advisories (deny.toml), if cargo-deny and its database are available
	@$(call section,advisories)
	scripts/advisories.sh

.PHONY: soak
soak: build ## Run the fault tests for an hour on each store (SOAK_MINUTES=60; MILLPOND_TEST_SEED repeats a schedule)
	@$(call tools)
	SOAK_MINUTES=$${SOAK_MINUTES:-60} "$$MILLPOND_PYTHON" -m pytest -s tests/test_faults.py -k survive_every

.PHONY: lint
lint: lint-rust lint-go lint-scripts ## Formatting and lints of Rust, Go, shell and Python

.PHONY: lint-rust
lint-rust:
	@$(call section,lints of Rust)
	cargo fmt --all --check
	cargo fmt --manifest-path bench/peers/opendata/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	# As `make demo` builds it.
	cargo clippy --locked -p millpond-cli --no-default-features -- -D warnings
	# Every patch fits the code.
	python3 scripts/planted-bugs.py --plant-only

.PHONY: lint-go
lint-go:
	@$(call section,lints of Go)
	source scripts/go-env.sh
	unformatted=$$(gofmt -l $(CLIENTS)/go otel-exporter deploy/tests tests/prometheus)
	[[ -z $$unformatted ]] || { printf 'run gofmt -w on: %s\n' $$unformatted; exit 1; }
	(cd $(CLIENTS)/go && go vet ./...)
	(cd otel-exporter && go vet ./...)
	(cd deploy/tests && go vet ./...)
	# The code generated from the .proto files is current; `go generate` rewrites it.
	(cd otel-exporter/internal/generate && go vet . && go run . -check)
	(cd otel-exporter/internal/bench && go vet .)
	(cd tests/prometheus && go vet .)

.PHONY: lint-scripts
lint-scripts:
	@$(call section,lints of scripts)
	for script in scripts/*.sh tutorial/*.sh .ci/run; do bash -n "$$script"; done
	node --check tests/clients/js/send.js
	node --check tests/browser/look.mjs
	node --check cli/src/admin/page.js
	$(call tools,python)
	"$$MILLPOND_PYTHON" -m ruff check tests scripts $(CLIENTS)
	"$$MILLPOND_PYTHON" -m ruff format --check tests scripts $(CLIENTS)
