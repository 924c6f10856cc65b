#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Builds the micro-benchmarks into DIR, static, so that they run in any guest. The scripts for Node go there too.
set -eu

dir=${1:?usage: build.sh DIR}
here=$(dirname "$0")
mkdir -p "$dir"

# build NAME SOURCE FLAGS...
build() {
	out=$dir/$1
	source=$here/c/$2.c
	shift 2
	${CC:-cc} -std=gnu11 -Wall -Wextra -static "$@" -o "$out" "$source" -lm
}

build tailfact tailfact -O2
build parseint parseint -O2
build fib fib -O2 -fno-optimize-sibling-calls
build randmatstat randmatstat -O2
build canny-no-optimize canny -O0
build canny-optimize canny -O3
build pisum pisum -O2
build sort sort -O2
build randmatmul randmatmul -O3
build omega loop -O2 -DOMEGA
build epsilon loop -O2
build omega-alone loop -O2 -DOMEGA -DALONE -nostdlib
build epsilon-alone loop -O2 -DALONE -nostdlib
cp "$here"/js/*.js "$dir"
