# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: instructions that SystemTap's probes add to each hit, as guest.sh measures the others. /bench/stap has a folder
# for each table and tool, with the probes that systemtap.sh compiled: modules, or programs for stapbpf.
hit="/bench/hit read"
false="-1 1"
true="-1 0"

# kept FOLDER CASE N: records of the command that have to be there: hit.c calls five times N. The value tells them from others'.
# Without a condition, the reads of SystemTap's own reader are recorded too, and a few of all records are lost.
kept() {
	case $1 in
		*binary) od -An -v -w8 -td8 /tmp/out ;;
		*) cat /tmp/out ;;
	esac >/tmp/values
	case $2 in
		empty | false) lines=$(grep -cE '^ *(1|-2)$' /tmp/values); [ "$lines" = 0 ] ;;
		record) lines=$(grep -c '^ *1$' /tmp/values); [ "$lines" -gt $((5 * $3 * 9 / 10)) ] ;;
		both) lines=$(grep -c '^ *-2$' /tmp/values); [ "$lines" = $((5 * $3)) ] ;;
	esac
}
for folder in /bench/stap/*/*; do
	for probe in "$folder"/*; do
		case=$(basename "${probe%.*}")
		args=$false
		[ "$case" = both ] && args=$true
		: >/tmp/out
		# stapbpf loses records when there are many, and aborts.
		case $probe in
			*.ko) n=${N:-3000} run=staprun ;;
			*) n=20 run=/bench/stapbpf ;;
		esac
		base=$($hit $n $false)
		took=$(timeout 60 $run -o /tmp/out -c "$hit $n $args" "$probe" 2>/tmp/said)
		if kept "$folder" "$case" $n && [ -n "$took" ]; then
			[ $case != record ] || [ "$lines" = $((5 * n)) ] || echo "$probe: $lines of $((5 * n)) records" >&2
			echo "$(basename "$(dirname "$folder")")|$(basename "$folder")|$case|$((took - base))"
		else
			echo "$probe: $lines records, took ${took:-nothing}" >&2
			cat /tmp/said >&2
		fi
	done
done
