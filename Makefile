# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   make          build everything, optimised
#   make sql      build kprism-sql, for `kprism lake sql`; fetches DuckDB the first time (see docs/lake.md)
#   make recorder-arm64  build kprism-recorder for boards with 64-bit ARM, beside the rest (see docs/board.md; PROFILE=checked)
#   make demo     install what is missing, record the demo workload, print tables, write report.html
#   make test     install what is missing, check and run everything that can be tested; ~/.cache/kprism/last-test keeps how it ended
#   make test-whole  the same with all parts of the long tests, of which `make test` takes another part each day (an hour)
#   make test-axes  try what the world varies, all pairs of values, judged by other tools: INSTRUMENT= (see docs/axes.md); an hour
#   make test-fresh  the same on a bare Debian in a folder (SUITE=trixie ORDER=test,demo AS=user RUST=with: see scripts/test-fresh.sh)
#   make check    what can be told without running anything: format, lints, documentation, layers, lock files (minutes; see scripts/check.sh)
#   make test-changed  check, and the tests that a change concerns (SINCE=main: what is not there; see scripts/changed.py)
#   make test-papers  each command of docs/papers.md as it stands there, and the figures on that page (LONG=1: benchmarks and kernels too)
#   make programs  the programs and kernel modules that those commands share with the guest: target/tlb, flow-cost, ptat, lttng
#   make bench    measure recording and reading against their peers, and write the tables of docs/benchmarks.md (half an hour)
#   make bench-flow-cost  what traces of the paper's micro-benchmarks cost (see docs/flow-cost.md)
#   make test-gcov-kernel  build a kernel with gcov (once, 11 minutes of one CPU) and let gcov and lcov judge all of it
#   make test-kernel-tests  build a kernel with KUnit (once, 15 minutes of one CPU), and run its tests and some selftests
#   make test-growth  how work and memory grow with the input, family by family; writes docs/growth.md (an hour)
#   make test-probe  C, C++ and Rust programs built in 64 ways, GDB judges places, counts and values; probes of the stock kernel in the guest: GDB judges 398 expressions and locals around tracepoints; lines, returns, per-CPU variables
#   make soak     probes switched on and off under load for SOAK_SECONDS (1800): nothing is left, every hit accounted for
#   make test-expr-kernel  PROGRAMS (1,000,000) made-up programs from SEED in the guest's kernel and in the interpreter
#   make test-profile-use  compile that kernel with what it counted, and compare instructions (see docs/pgo.md)
#   make bench-cover  measure coverage of that kernel against gcov, lcov, fastcov, gcovr, grcov
#   make bench-probe  what a probe costs at each hit, against bpftrace and ftrace (see docs/probe.md)
#   make bench-cover-overhead  what gcov's counters cost in instructions of each system call (see docs/cover.md)
#   make bench-cover-jitter  what they cost a real-time kernel in latency (see docs/measurements/cover.md); builds two kernels
#   make bench-func  what measuring a function adds to each call of it, and the paper's tables (see docs/func-bpf.md); builds three kernels
#   make bench-workloads  sqlite, fio and redis, table 2 of paper 1, and single operations of the kernel (see docs/workloads/)
#   make bench-ops  single operations of the kernel without and with gcov's counters; builds two kernels (see docs/measurements/workloads.md)
#   make test-tlb  a search with huge pages, predicted and measured (PTAT paper, 6.2)
#   make bench-tlb  what it costs to see every TLB miss, by each method, and by others (see docs/tlb.md)
#   make fuzz     fuzz each target for FUZZ_SECONDS (default 60); needs a nightly toolchain and cargo-fuzz
#   make pictures  pictures of each page, of real runs, into docs/pictures (also: make figures)
#   make install  copy the program, its plugins, its agent, man pages and completions to PREFIX
#   make dist     archives and a Debian package for machines without Rust, into target/dist (see docs/install.md)
#   make wheel    the Python package with programs and plugins, into target/dist (see docs/python.md)
#   make test-dist  these packages on a bare Debian in a folder (SUITE=trixie FROM=archive: see scripts/test-dist.sh)

# Where rustup puts cargo.
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO ?= cargo
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

TARGET := $(or $(CARGO_TARGET_DIR),target)
KPRISM := $(TARGET)/release/kprism
RUN ?= kprism.data
HTML ?= report.html

.PHONY: all sql recorder-arm64 demo test test-whole check test-changed test-papers programs test-axes test-fresh test-gcov-kernel test-kernel-tests test-growth test-probe soak test-expr-kernel test-profile-use bench bench-cover bench-cover-overhead bench-cover-jitter bench-flow-cost bench-func bench-ops bench-probe bench-tlb bench-workloads test-tlb fuzz pictures figures install dist wheel test-dist setup-demo setup-test

all:
	$(CARGO) build --release --workspace

sql:
	@sh scripts/duckdb.sh build release

# It needs no C compiler for ARM, but Rust's standard library for it.
PROFILE ?= release
recorder-arm64:
	@CARGO="$(CARGO)" sh scripts/recorder-arm64.sh $(PROFILE)

setup-demo:
	@sh scripts/setup.sh --yes demo

setup-test:
	@sh scripts/setup.sh --yes test

demo: setup-demo
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) RUN=$(RUN) HTML=$(HTML) sh scripts/demo.sh

test: setup-test
	@CARGO="$(CARGO)" sh scripts/test.sh

test-whole: setup-test
	@CARGO="$(CARGO)" KPRISM_TEST_WHOLE=1 sh scripts/test.sh

check: setup-demo
	@CARGO="$(CARGO)" sh scripts/check.sh

SINCE ?= main
test-changed: setup-test
	@CARGO="$(CARGO)" SINCE="$(SINCE)" sh scripts/test.sh

programs: setup-demo
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) OUT=$(TARGET) sh scripts/programs.sh

test-papers: setup-test
	$(CARGO) build --release --workspace
	@KPRISM=$(abspath $(KPRISM)) python3 tests/papers/run.py $(if $(LONG),--long) $(if $(SEED),--seed $(SEED)) $(PAPERS)

# All instruments, or INSTRUMENT; the page gets their sections.
test-axes: setup-test
	$(CARGO) build --profile checked --workspace
	@KPRISM=$(abspath $(TARGET))/checked/kprism python3 tests/axes/axes.py $(INSTRUMENT) --page docs/axes.md

test-fresh:
	@sh scripts/test-fresh.sh

test-gcov-kernel: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-agent
	@CARGO="$(CARGO)" KPRISM=$(TARGET)/checked/kprism sh scripts/test-gcov-kernel.sh

test-kernel-tests: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-observer -p kprism-agent
	@CARGO="$(CARGO)" KPRISM=$(TARGET)/checked/kprism sh scripts/test-kernel-tests.sh

# FAMILY names those to try; all are tried, and the page is written, without it.
test-growth:
	$(CARGO) build --profile checked --workspace
	@KPRISM=$(abspath $(TARGET))/checked/kprism python3 tests/growth/growth.py $(FAMILY)

# The kernel's debug information is fetched once: 1 GB.
test-probe: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-agent
	@export KPRISM=$(abspath $(TARGET))/checked/kprism; cd tests/probe && python3 matrix.py && python3 corpus.py && python3 places.py && python3 sites.py 50

# Seconds of the host.
SOAK_SECONDS ?= 1800
soak: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-agent
	@cd tests/probe && KPRISM=$(abspath $(TARGET))/checked/kprism python3 soak.py $(SOAK_SECONDS)

test-expr-kernel: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-agent
	$(CARGO) build --profile checked -p kprism-expr --example kernel_diff
	@KPRISM=$(TARGET)/checked/kprism KERNEL_DIFF=$(TARGET)/checked/examples/kernel_diff OUT=$(TARGET)/expr-kernel \
		sh scripts/test-expr-kernel.sh

test-profile-use: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-observer -p kprism-agent
	@KPRISM=$(TARGET)/checked/kprism OUT=$(TARGET)/profile-use sh scripts/test-profile-use.sh

bench-cover:
	$(CARGO) build --release -p kprism -p kprism-agent
	@KPRISM=$(KPRISM) OUT=$(TARGET)/cover sh bench/cover/run.sh

bench-cover-overhead: setup-test
	$(CARGO) build --release -p kprism -p kprism-observer -p kprism-agent
	@export KPRISM=$(KPRISM) OUT=$(TARGET)/cover && plain=$$(sh bench/kernel.sh --uncounted) && counted=$$(sh bench/kernel.sh) && \
		sh bench/cover/overhead.sh "$$plain/arch/x86/boot/bzImage" "$$counted/arch/x86/boot/bzImage" && \
		sh bench/cover/size.sh "$$plain" "$$counted"

# Two small kernels with PREEMPT_RT.
RT := small --config CONFIG_EXPERT=y --config CONFIG_PREEMPT_RT=y
bench-cover-jitter: setup-test
	$(CARGO) build --release -p kprism -p kprism-observer -p kprism-agent
	@export KPRISM=$(KPRISM) OUT=$(TARGET)/cover && plain=$$(sh bench/kernel.sh $(RT) --uncounted) && counted=$$(sh bench/kernel.sh $(RT)) && \
		sh bench/cover/jitter.sh "$$plain" "$$counted" && sh bench/cover/size.sh "$$plain" "$$counted"

bench: setup-test
	@CARGO="$(CARGO)" python3 bench/run.py

bench-flow-cost: setup-test
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) OUT=$(TARGET)/flow-cost sh bench/flow-cost/run.sh

# Three small kernels with tracepoints: without the function tracers, with them, and with them but not dynamic.
TRACED := small --uncounted --config CONFIG_FTRACE=y
bench-func: setup-test
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) OUT=$(TARGET)/func sh bench/func/run.sh
	@KPRISM=$(KPRISM) OUT=$(TARGET)/func sh bench/func/paper.sh
	@export KPRISM=$(KPRISM) OUT=$(TARGET)/func && without=$$(sh bench/kernel.sh $(TRACED) --config CONFIG_ENABLE_DEFAULT_TRACERS=y) && \
		with=$$(sh bench/kernel.sh $(TRACED) --config CONFIG_FUNCTION_TRACER=y --config CONFIG_FUNCTION_GRAPH_TRACER=y --config CONFIG_DYNAMIC_FTRACE=y) && \
		static=$$(sh bench/kernel.sh $(TRACED) --config CONFIG_FUNCTION_TRACER=y --config CONFIG_DYNAMIC_FTRACE=n) && \
		sh bench/func/built-in.sh "$$without" "$$with" "$$static"

bench-probe:
	$(CARGO) build --release -p kprism -p kprism-agent
	@KPRISM=$(KPRISM) OUT=$(TARGET)/probe sh bench/probe/run.sh

bench-workloads: setup-test
	$(CARGO) build --release -p kprism -p kprism-observer -p kprism-agent
	@KPRISM=$(KPRISM) OUT=$(TARGET)/workloads sh bench/workloads/run.sh

bench-ops: setup-test
	$(CARGO) build --release -p kprism -p kprism-observer -p kprism-agent
	@export KPRISM=$(KPRISM) OUT=$(TARGET)/workloads && plain=$$(sh bench/kernel.sh --uncounted) && counted=$$(sh bench/kernel.sh) && \
		sh bench/workloads/ops.sh "$$plain/arch/x86/boot/bzImage" "$$counted/arch/x86/boot/bzImage"

test-tlb: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-observer -p kprism-agent
	$(CARGO) test --profile checked -p kprism --test tlb -- --ignored --nocapture

bench-tlb: setup-test
	$(CARGO) build --release -p kprism -p kprism-observer -p kprism-user -p kprism-agent
	@KPRISM=$(KPRISM) OUT=$(TARGET)/tlb python3 bench/tlb/run.py
	$(CARGO) test --release -p kprism-tlb -- --ignored --nocapture gups speed

fuzz:
	@CARGO="$(CARGO)" SECONDS_EACH=$(FUZZ_SECONDS) sh scripts/fuzz.sh

pictures figures: setup-test
	@CARGO="$(CARGO)" sh scripts/pictures.sh

install: all
	PREFIX=$(PREFIX) sh scripts/install.sh $(TARGET)/release $(DESTDIR)

dist:
	@CARGO="$(CARGO)" sh scripts/dist.sh

wheel: all
	@BUILT=$(TARGET)/release OUT=$(TARGET)/dist sh scripts/wheel.sh

test-dist:
	@sh scripts/test-dist.sh
