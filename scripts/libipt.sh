#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Prints a folder with the source of Intel's libipt, whose test suite is run against our decoder (crates/instrument/flow/tests/ptt);
# fetches Debian 13's source package of it the first time.
set -eu

place=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/tools/libipt
if [ ! -d "$place/test/src" ]; then
	mkdir -p "$(dirname "$place")"
	rm -rf "$place.new" "$place"
	sh "$(dirname "$0")/debian-source.sh" intel-processor-trace "$place.new" trixie
	mv "$place.new" "$place"
fi
echo "$place"
