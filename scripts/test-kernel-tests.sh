#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# `make test-kernel-tests`: `lab kunit` and `lab kselftest` on a kernel with KUnit, which is built once. Reads KPRISM, CARGO.
set -eu

command -v pahole >/dev/null || { echo "test-kernel-tests: BTF takes pahole: apt-get install pahole" >&2; exit 2; }
set -- --config CONFIG_RUNTIME_TESTING_MENU=y --config CONFIG_BPF_SYSCALL=y --config CONFIG_DEBUG_INFO_BTF=y
for option in KUNIT KUNIT_DEBUGFS KUNIT_EXAMPLE_TEST KUNIT_TEST LIST_KUNIT_TEST BITS_TEST SYSCTL_KUNIT_TEST CMDLINE_KUNIT_TEST \
	RESOURCE_KUNIT_TEST STRING_KUNIT_TEST; do
	set -- "$@" --config "CONFIG_$option=y"
done
set -- lab gcov-kernel --uncounted --debug-info "$@"
"$KPRISM" "$@"
# The last line again: `ready: RELEASE in TREE, IMAGE`.
tree=$("$KPRISM" "$@" 2>&1 | sed -n 's/.*ready: [^ ]* in \(.*\), .*/\1/p')
KPRISM_KUNIT_TREE=$tree "${CARGO:-cargo}" test --profile checked -p kprism --test kernel_tests
