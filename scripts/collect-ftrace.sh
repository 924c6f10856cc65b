#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Collects function durations, or what a boot left, on a machine on which kprism does not run, such as an ARM board. It needs a
# POSIX shell, the commands of busybox, root, and a kernel with ftrace.
#
#   sh collect-ftrace.sh [-o FOLDER] [-t MICROSECONDS] [-b KIB] [-g FUNCTION]... COMMAND...
#   sh collect-ftrace.sh [-o FOLDER]
#
# With a command: traces the calls that the kernel makes for it (-t: only those that took longer; -g: only this function and what
# it calls; -b: size of each CPU's buffer), and puts back what it changed, also if it is killed. Without one: collects what is in
# the buffers and in the kernel's log after a boot with the words that `kprism record boot` prints.
#
# FOLDER (trace.data) then has the pages of the ring buffer and all that it takes to read them. Take it to where kprism is, by hand
# or by `ssh root@BOARD tar -C /root -c trace.data | tar -x`, and there: kprism import trace.data
#
# Exit code: the command's; 2 if nothing was collected; 130 if it was interrupted, which keeps what was traced until then.
set -u

say() {
	echo "collect-ftrace.sh: $*" >&2
}
fail() {
	say "$@"
	exit 2
}
usage="usage: sh collect-ftrace.sh [-o FOLDER] [-t MICROSECONDS] [-b KIB] [-g FUNCTION]... [COMMAND...]"
folder=trace.data
threshold=
size=
functions=
while getopts o:t:b:g:h option; do
	case $option in
	o) folder=$OPTARG ;;
	t) threshold=$OPTARG ;;
	b) size=$OPTARG ;;
	g) functions="$functions $OPTARG" ;;
	h) echo "$usage" && exit 0 ;;
	*) fail "$usage" ;;
	esac
done
shift $((OPTIND - 1))
for number in "$threshold" "$size"; do
	case $number in *[!0-9]*) fail "\`$number\` is no whole number" ;; esac
done
[ $# -gt 0 ] || [ -z "$threshold$size$functions" ] || fail "-t, -b and -g are for a command that is traced"
[ "$(id -u)" = 0 ] || fail "it needs root"
[ ! -e "$folder" ] || fail "$folder is there already: name another one with -o"

mounted=
for tracing in /sys/kernel/tracing /sys/kernel/debug/tracing; do
	[ ! -e "$tracing/trace" ] || break
done
if [ ! -e "$tracing/trace" ]; then
	tracing=/sys/kernel/tracing
	mount -t tracefs tracefs "$tracing" 2>/dev/null || fail "no tracefs: the kernel needs CONFIG_FTRACE"
	mounted=yes
fi

# value FILE: what a file of tracefs says.
value() {
	cat "$tracing/$1" 2>/dev/null
}
# set_to VALUE FILE
set_to() {
	echo "$1" 2>/dev/null >"$tracing/$2"
}
# back_to VALUE FILE
back_to() {
	set_to "$1" "$2" || say "$tracing/$2 could not be set back to \`$1\`"
}

# What is changed, as it was before.
tracing_on=$(value tracing_on)
tracer=$(value current_tracer)
before_threshold=$(value tracing_thresh)
before_size=$(value buffer_size_kb)
before_size=${before_size%% *}
forks=$(value options/function-fork)
put_back() {
	back_to "$tracer" current_tracer
	if [ "$traces" ]; then
		echo >"$tracing/set_ftrace_pid"
		echo >"$tracing/set_graph_function"
		[ -z "$before_threshold" ] || back_to "$before_threshold" tracing_thresh
		[ -z "$size" ] || back_to "$before_size" buffer_size_kb
		[ -z "$forks" ] || back_to "$forks" options/function-fork
	fi
	back_to "$tracing_on" tracing_on
	[ -z "$mounted" ] || umount "$tracing"
}

traces=
if [ $# -gt 0 ]; then
	case " $(value available_tracers) " in
	*" function_graph "*) ;;
	*) fail "this kernel has no function_graph: it needs CONFIG_FUNCTION_GRAPH_TRACER" ;;
	esac
	[ "$tracer" = nop ] || fail "the tracer $tracer is on: somebody else traces here"
	case $(value set_ftrace_pid)$(value set_graph_function) in
	*[0-9]* | [!#n]*) fail "set_ftrace_pid or set_graph_function is in use: somebody else traces here" ;;
	esac
	case $size,$before_size in ?*,*[!0-9]*) fail "-b: the CPUs' buffers differ in size, which could not be put back" ;; esac
	command -v "$1" >/dev/null || fail "$1: no such command"
	traces=yes
elif [ "$(cat "$tracing"/per_cpu/cpu*/stats | grep -v '^entries: *0$' | grep -c '^entries')" = 0 ]; then
	fail "the buffers are empty: name a command, or boot with the words that \`kprism record boot\` prints"
fi

# If this shell is killed, its guard puts back what it changed.
main=$$
(
	trap '' INT TERM HUP
	while kill -0 "$main"; do sleep 1; done
	put_back
) </dev/null >/dev/null 2>&1 &
guard=$!
child=
interrupted=
finish() {
	trap '' INT TERM HUP
	put_back
	kill -9 "$guard"
	wait "$guard" 2>/dev/null
}
trap finish EXIT
trap 'interrupted=yes; [ -z "$child" ] || kill "$child"' INT TERM HUP

set_to 0 tracing_on || fail "$tracing cannot be written"
code=0
if [ "$traces" ]; then
	set_to "${threshold:-0}" tracing_thresh || [ -z "$threshold" ] || fail "-t: the kernel takes no threshold"
	if [ "$size" ]; then
		set_to "$size" buffer_size_kb || fail "-b: the kernel does not give $size KiB for each CPU"
	fi
	# What the command starts is traced too (Linux 4.12).
	[ -z "$forks" ] || set_to 1 options/function-fork
	for function in $functions; do
		echo "$function" 2>/dev/null >>"$tracing/set_graph_function" || fail "-g $function: the kernel cannot trace it"
	done
	echo >"$tracing/trace"
	set_to function_graph current_tracer || fail "function_graph cannot be switched on"
	# The shell in the brackets says which process it is, and becomes the command. A background process has no input but one that
	# was kept for it.
	exec 3<&0
	(
		# Without its number the kernel would trace everybody.
		echo "$(exec sh -c 'echo $PPID')" >"$tracing/set_ftrace_pid" || exit 2
		echo 1 >"$tracing/tracing_on"
		exec "$@" 3<&-
	) <&3 &
	child=$!
	exec 3<&-
	[ -z "$interrupted" ] || kill "$child"
	wait "$child"
	code=$?
	# A signal ends the wait before the command has ended.
	while kill -0 "$child" 2>/dev/null; do
		wait "$child"
		code=$?
	done
	child=
	set_to 0 tracing_on
fi

mkdir -p "$folder/stats" && cd "$folder" || fail "$folder cannot be made"
# The pages of all CPUs. A read waits where there are none, so the readers are ended when nothing has come for a second.
readers=
for cpu in "$tracing"/per_cpu/cpu*; do
	cat "$cpu/trace_pipe_raw" >"${cpu##*/}.raw" &
	readers="$readers $!"
done
last=
left=x
while [ "$left" != "$last" ]; do
	last=$left
	sleep 1
	left=$(cat "$tracing"/per_cpu/cpu*/stats | grep '^entries')
done
kill $readers
wait $readers 2>/dev/null
for cpu in "$tracing"/per_cpu/cpu*; do
	cat "$cpu/stats" >"stats/${cpu##*/}"
	grep -q '^entries: *0$' "$cpu/stats" || say "${cpu##*/}: $(grep '^entries' "$cpu/stats") could not be read"
done
value events/header_page >header_page
for format in "$tracing"/events/ftrace/*/format $(value set_event | sed "s|:|/|; s|.*|$tracing/events/&/format|"); do
	[ -e "$format" ] || continue
	to=${format#"$tracing"/}
	mkdir -p "${to%/format}"
	cat "$format" >"$to"
done
for file in saved_cmdlines saved_tgids trace_clock tracing_thresh; do
	[ ! -e "$tracing/$file" ] || value "$file" >"$file"
done
value current_tracer >tracer
cat /proc/kallsyms >kallsyms
cat /proc/version >version
if [ -z "$traces" ]; then
	cat /proc/cmdline >cmdline
	dmesg 2>/dev/null >dmesg || say "the kernel's log cannot be read"
fi
grep -qv '^0* ' kallsyms || say "/proc/kallsyms has no addresses, so functions have no names: set kernel.kptr_restrict to 0"
[ -z "$interrupted" ] || code=130
echo "collected in $folder; where kprism is: kprism import $folder" >&2
exit "$code"
