#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The figures of docs/workloads/redis.md: 1,000 SETs and 1,000 GETs of redis-benchmark over loopback; the same with every
# SET synced to ext4. See lib.sh for KPRISM and OUT.
set -eu
. "$(dirname "$0")/lib.sh"

mkdir -p "$OUT/redis"
cat >"$OUT/redis/load.sh" <<'END'
#!/bin/sh
# load.sh OPTION...: a server with these options, and a client of 4 connections that sets and gets.
redis-server --save '' --dir /mnt --daemonize yes --logfile /tmp/log "$@" >/dev/null
until redis-cli ping >/dev/null 2>&1; do sleep 0.01; done
redis-benchmark -n 1000 -c 4 -t set,get --csv
redis-cli info commandstats
redis-cli shutdown nosave
END
chmod 755 "$OUT/redis/load.sh"
guest="--package redis-server --package redis-tools --disk disk.ext4 --share redis"
# shellcheck disable=SC2086 # several words
{
	record memory $guest --before "$mount" -- /share/load.sh
	record synced $guest --before "$mount" -- /share/load.sh --appendonly yes --appendfsync always
}
show report tasks -i memory --limit 4
show report syscalls -i memory --comm redis-server --limit 6
show script calls -i memory --comm redis-server --func setCommand --depth 3 --limit 14
show report syscalls -i memory --comm redis-server --syscall write --call slowest --parts
show_call report tree -i memory --comm redis-server --syscall write --call median --min-percent 5 --limit 45
show_call report tree -i memory --comm redis-server --syscall write --call slowest --min-percent 10 --limit 40
show report syscalls -i synced --comm redis-server --limit 6
show diff memory synced --comm redis-server --limit 6
show report delta irqs -i memory --limit 3

# By another hand: the server's own counts of commands.
for run in memory synced; do
	for command in set get; do
		count=$(tr -d '\r' <"$OUT/$run.out" | sed -n "s/^cmdstat_$command:calls=\([0-9]*\),.*/\1/p")
		executed=$("$KPRISM" report functions -q --json --limit 0 -i "$OUT/$run" --comm redis-server |
			python3 -c 'import json, sys
print(sum(r["calls"] for r in json.load(sys.stdin)["rows"] if r["function"] == sys.argv[1]))' "${command}Command")
		same "$run: the server's count of $command, and the client's requests" "$count" 1000
		same "$run: calls of ${command}Command, and the server's count" "$executed" "$count"
	done
done
