# SPDX-License-Identifier: MIT OR Apache-2.0
#
# fast.sh, read by native.sh and bytecode-guest.sh: gdbserver's fast tracepoint, which is a jump to code that gdbserver's agent
# (libinproctrace.so) made in the program. The agent compiles conditions, but not all of GDB's operations: a condition with a
# multiplication is interpreted.

# fast_build HIT SOURCE: the program. gdbserver's jump writes over the red zone below the stack, where functions that call none
# keep their variables (conditions then see other values), so there is none.
fast_build() { cc -O2 -g -no-pie -mno-red-zone -o "$1" "$2"; }
# fast_place HIT: the first instruction of `work` that is long enough for a jump.
fast_place() {
	objdump -d --disassemble=work --insn-width=16 "$1" | awk '/^ +[0-9a-f]+:/ {
		for (n = 0; $(n + 2) ~ /^[0-9a-f][0-9a-f]$/; n++);
		if (n >= 5) { sub(":", "", $1); print $1; exit } }'
}
fast_agent() { ls /usr/lib/libinproctrace.so /usr/lib/*/libinproctrace.so 2>/dev/null | head -n 1; }

# fast HIT PLACE CODE FRAMES ARGS IF COLLECT: nanoseconds of a hit, if as many frames as FRAMES are there at the end, and the agent
# has the condition as CODE: native, bytecode, or none. A frame is 2300 bytes: few hits fill its buffer, and a full buffer ends the
# trace. $work is a folder. The agent's list of tracepoints has, ten words in, the address of a condition's native code, or 0
# (gdbserver 13; the second word is the tracepoint's address, which is compared).
fast() {
	cat >"$work/fast" <<-END
		set confirm off
		set pagination off
		set auto-load no
		target remote | env LD_PRELOAD=$(fast_agent) gdbserver --once - $1 work 5000 $5
		break main
		continue
		ftrace *0x$2 $6
		actions
		collect $7
		end
		set trace-buffer-size 134217728
		catch syscall exit_group
		tstart
		continue
		tstatus
		set var \$list = *(unsigned long **) &gdb_agent_tracepoints
		printf "agent: %lx %lx %lx\n", \$list[1], \$list[5], \$list[10]
		kill
	END
	gdb -q -nx -batch -x "$work/fast" "$1" >"$work/out" 2>&1 </dev/null || true
	# shellcheck disable=SC2046 # three words
	set -- "$@" $(sed -n 's/^agent: //p' "$work/out")
	code=none
	[ "${9:-0}" = 0 ] || code=bytecode
	[ "${10:-0}" = 0 ] || code=native
	if [ "${8:-}" = "$2" ] && [ "$code" = "$3" ] && grep -q "^Collected $4 trace frames" "$work/out"; then
		grep -E '^[0-9]+$' "$work/out" | tail -n 1
	else
		echo "gdbserver, $6: not $4 frames by $3 code, but by $code: $(grep '^Collected' "$work/out" || tail -n 3 "$work/out")" >&2
	fi
}
