#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
#
# build.sh RELEASE OUT: builds ptat.ko for Debian's kernel RELEASE into the folder OUT.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
exec sh "$here/../../scripts/build-module.sh" "$1" "$(cd "$2" && pwd)" "$here/ptat.c"
