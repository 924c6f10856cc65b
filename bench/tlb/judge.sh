#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# judge.sh DYNAMORIO [OUT]: builds DynamoRIO's TLB simulator, from a checkout of github.com/DynamoRIO/dynamorio, as a
# program that crates/instrument/tlb/tests/judge.rs can ask (KPRISM_TLB_JUDGE=OUT). Only the simulator: no client, no submodules.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$1" && pwd)
out=${2:-target/tlb/judge}
from=$root/clients/drcachesim
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"
for file in "$from"/simulator/tlb_simulator.cpp "$from"/simulator/tlb.cpp "$from"/simulator/simulator.cpp \
	"$from"/simulator/caching_device.cpp "$from"/simulator/caching_device_stats.cpp \
	"$from"/simulator/create_cache_replacement_policy.cpp "$from"/simulator/policy_*.cpp \
	"$from"/reader/v2p_reader.cpp "$from"/simulator/prefetcher.cpp "$from"/simulator/snoop_filter.cpp "$from"/common/trace_entry.cpp "$here"/judge.cpp; do
	${CXX:-g++} -std=c++17 -O2 -c -DLINUX -DUNIX -DX86 -DX64 -DX86_64 -I"$from" -I"$from/common" -I"$from/simulator" -I"$from/reader" \
		-I"$root/ext/droption" -I"$root/core/lib" -I"$root/core" -o "$work/$(basename "$file").o" "$file"
done
${CXX:-g++} -o "$out" "$work"/*.o
echo "$out"
