# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: instructions that SystemTap's probes add to each hit, as guest.sh measures the others. /bench/stap has a folder
# for each table and tool, with the probes that systemtap.sh compiled: modules, or programs for stapbpf.
n=${N:-3000}
hit="/bench/hit read"
false="-1 1"
true="-1 0"
base=$($hit 10000 $false)

# kept FOLDER CASE: records that have to be there; hit.c calls five times N, and others' reads are recorded too.
kept() {
	case $1 in
		*binary) lines=$(($(wc -c </tmp/out) / 8)) ;;
		*) lines=$(grep -cE '^-?[0-9]+$' /tmp/out) ;;
	esac
	case $2 in
		empty | false) [ "$lines" = 0 ] ;;
		record) [ "$lines" -ge $((5 * n)) ] ;;
		both) [ "$lines" = $((5 * n)) ] ;;
	esac
}
for folder in /bench/stap/*/*; do
	for probe in "$folder"/*; do
		case=$(basename "${probe%.*}")
		args=$false
		[ "$case" = both ] && args=$true
		case $probe in
			*.ko) took=$(staprun -o /tmp/out -c "$hit $n $args" "$probe" 2>/tmp/said) ;;
			*) took=$(/bench/stapbpf -o /tmp/out -c "$hit $n $args" "$probe" 2>/tmp/said) ;;
		esac
		if kept "$folder" "$case" && [ ! -s /tmp/said ] && [ -n "$took" ]; then
			echo "$(basename "$(dirname "$folder")")|$(basename "$folder")|$case|$((took - base))"
		else
			echo "$probe: $lines records, took ${took:-nothing}" >&2
			cat /tmp/said >&2
			head -n 3 /tmp/out | cut -c 1-80 >&2
		fi
	done
done
