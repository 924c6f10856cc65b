# SPDX-License-Identifier: MIT OR Apache-2.0
#
#   make          build everything, optimised
#   make demo     install what is missing, record the demo workload, print tables, write report.html
#   make test     install what is missing, check and run everything that can be tested
#   make bench    measure, in one run, against the peers
#   make bench-flow-cost  what traces of the paper's micro-benchmarks cost (see docs/flow-cost.md)
#   make test-gcov-kernel  build a kernel with gcov (once, 11 minutes of one CPU) and let gcov and lcov judge all of it
#   make test-probe  probes of the stock kernel in the guest: GDB judges 398 expressions; lines, returns, per-CPU variables; a soak of SOAK_SECONDS
#   make test-profile-use  compile that kernel with what it counted, and compare instructions (see docs/pgo.md)
#   make bench-cover  measure coverage of that kernel against gcov, lcov, fastcov, gcovr, grcov
#   make bench-func  what measuring a function adds to each call of it, and the paper's tables (see docs/func-bpf.md)
#   make fuzz     fuzz each target for FUZZ_SECONDS (default 60); needs a nightly toolchain and cargo-fuzz
#   make install  copy the program, its plugin, its agent, man page and completions to PREFIX

CARGO ?= cargo
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

TARGET := $(or $(CARGO_TARGET_DIR),target)
KPRISM := $(TARGET)/release/kprism
RUN ?= kprism.data
HTML ?= report.html

.PHONY: all demo test test-gcov-kernel test-probe test-profile-use bench bench-cover bench-flow-cost bench-func fuzz install setup-demo setup-test

all:
	$(CARGO) build --release --workspace

setup-demo:
	@sh scripts/setup.sh --yes demo

setup-test:
	@sh scripts/setup.sh --yes test

demo: setup-demo
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) RUN=$(RUN) HTML=$(HTML) sh scripts/demo.sh

test: setup-test
	@CARGO="$(CARGO)" sh scripts/test.sh

test-gcov-kernel: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-agent
	@CARGO="$(CARGO)" KPRISM=$(TARGET)/checked/kprism sh scripts/test-gcov-kernel.sh

# SOAK_SECONDS of the host. The kernel's debug information is fetched once: 1 GB.
SOAK_SECONDS ?= 1800
test-probe: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-agent
	@export KPRISM=$(abspath $(TARGET))/checked/kprism; cd tests/probe && \
		python3 corpus.py && python3 places.py && python3 soak.py $(SOAK_SECONDS)

test-profile-use: setup-test
	$(CARGO) build --profile checked -p kprism -p kprism-observer -p kprism-agent
	@KPRISM=$(TARGET)/checked/kprism OUT=$(TARGET)/profile-use sh scripts/test-profile-use.sh

bench-cover:
	$(CARGO) build --release -p kprism -p kprism-agent
	@KPRISM=$(KPRISM) OUT=$(TARGET)/cover sh bench/cover/run.sh

bench: setup-test
	@CARGO="$(CARGO)" sh scripts/bench.sh

bench-flow-cost: setup-test
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) OUT=$(TARGET)/flow-cost sh bench/flow-cost/run.sh

bench-func: setup-test
	$(CARGO) build --release --workspace
	@KPRISM=$(KPRISM) OUT=$(TARGET)/func sh bench/func/run.sh
	@KPRISM=$(KPRISM) OUT=$(TARGET)/func sh bench/func/paper.sh

fuzz:
	@CARGO="$(CARGO)" SECONDS_EACH=$(FUZZ_SECONDS) sh scripts/fuzz.sh

install: all
	install -Dm755 $(KPRISM) $(DESTDIR)$(PREFIX)/bin/kprism
	install -Dm755 $(TARGET)/release/libkprism_observer.so $(DESTDIR)$(PREFIX)/lib/kprism/libkprism_observer.so
	install -Dm755 $(TARGET)/release/libkprism_user.so $(DESTDIR)$(PREFIX)/lib/kprism/libkprism_user.so
	install -Dm755 $(TARGET)/release/kprism-agent $(DESTDIR)$(PREFIX)/lib/kprism/kprism-agent
	install -Dm755 $(TARGET)/release/kprism-recorder $(DESTDIR)$(PREFIX)/lib/kprism/kprism-recorder
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(KPRISM) man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(KPRISM) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/kprism
	$(KPRISM) completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_kprism
