// SPDX-License-Identifier: MIT OR Apache-2.0
//! The software tracers that are known: data only.
//!
//! Commands are lines of a shell in the guest. Events are read once the recording is over.

/// Commands that switch a tracer on in the guest, and that print what it saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracer {
    /// Its name on the command line, and that of its run's folder.
    pub name: String,
    /// A line on what it does.
    pub about: String,
    /// Debian packages it needs in the guest.
    pub packages: Vec<String>,
    /// Memory that a guest with these packages needs, MiB.
    pub mem_mib: u64,
    /// Switches it on; a failure says that it cannot be, and its errors why.
    pub set_up: String,
    /// Succeeds once it is at work, if `set_up` returns before.
    pub ready: String,
    /// Says in one line what it saw and what it lost.
    pub events: String,
}

struct Known {
    name: &'static str,
    about: &'static str,
    packages: &'static [&'static str],
    mem_mib: u64,
    set_up: &'static str,
    ready: &'static str,
    events: &'static str,
}

/// Counts of ftrace's ring buffer: seen and lost (Documentation/trace/ftrace.rst, "per_cpu/cpu0/stats").
const RING_BUFFER: &str = r#"cd /sys/kernel/tracing && echo 0 > tracing_on && cat per_cpu/cpu*/stats | awk '
/^entries:/ { kept += $2 } /^overrun:/ { over += $2 } /^commit overrun:/ { lost += $3 } /^dropped events:/ { lost += $3 }
END { printf "%d events, %d of them overwritten by later ones, %d lost\n", kept + over + lost, over, lost }'"#;

const KNOWN: &[Known] = &[
    Known {
        name: "function",
        about: "ftrace's function tracer",
        packages: &[],
        mem_mib: 0,
        set_up: "echo function > /sys/kernel/tracing/current_tracer",
        ready: "",
        events: RING_BUFFER,
    },
    Known {
        name: "function_graph",
        about: "ftrace's function graph tracer",
        packages: &[],
        mem_mib: 0,
        set_up: "echo function_graph > /sys/kernel/tracing/current_tracer",
        ready: "",
        events: RING_BUFFER,
    },
    Known {
        name: "events",
        about: "ftrace's events raw_syscalls:*",
        packages: &[],
        mem_mib: 0,
        set_up: "echo 1 > /sys/kernel/tracing/events/raw_syscalls/enable",
        ready: "",
        events: RING_BUFFER,
    },
    Known {
        name: "kprobes",
        about: "a kprobe at the body of every system call",
        packages: &[],
        mem_mib: 0,
        // One probe a name: some bodies have two, and a few are kept from being probed.
        set_up: r#"cd /sys/kernel/tracing
awk '$3 ~ /^__x64_sys_/ && !seen[$3]++ { print "p:kprism/" substr($3, 7), $3 }' /proc/kallsyms > /tmp/probes
while read -r probe; do echo "$probe" >> kprobe_events 2> /dev/null || true; done < /tmp/probes
echo 1 > events/kprism/enable"#,
        ready: "",
        events: RING_BUFFER,
    },
    Known {
        name: "perf",
        about: "perf record of raw_syscalls:* on all CPUs",
        packages: &["linux-perf/bookworm-backports"],
        mem_mib: 2048,
        // Begins disabled; its answer to `enable` comes when the events are on.
        set_up: r#"mkfifo /tmp/perf.control /tmp/perf.answer
perf record -q -a -D -1 --control fifo:/tmp/perf.control,/tmp/perf.answer -e 'raw_syscalls:*' -o /tmp/perf.data > /tmp/perf.log 2>&1 &
pid=$!
echo $pid > /tmp/perf.pid
(sleep 60; kill $pid) > /dev/null 2>&1 & watchdog=$!
exec 3<> /tmp/perf.control
echo enable >&3
read -r answer < /tmp/perf.answer || true
kill $watchdog
[ "$answer" = ack ] || { cat /tmp/perf.log >&2; exit 1; }"#,
        ready: "",
        events: r#"kill -INT $(cat /tmp/perf.pid); while [ -e /proc/$(cat /tmp/perf.pid)/exe ]; do sleep 0.1; done
perf report -i /tmp/perf.data --stats 2> /dev/null | awk '
$1 == "SAMPLE" { n += $3 } $1 ~ /^LOST/ { lost += $3 } END { printf "%d events, %d records of losses\n", n, lost }'"#,
    },
    Known {
        name: "bpftrace",
        about: "bpftrace, a histogram of each program's system call times",
        packages: &["bpftrace"],
        mem_mib: 2048,
        set_up: r#"bpftrace -e 'tracepoint:raw_syscalls:sys_enter { @start[tid] = nsecs; }
tracepoint:raw_syscalls:sys_exit /@start[tid]/ { @ns[comm] = hist(nsecs - @start[tid]); delete(@start[tid]); @events = count(); }' > /tmp/bpftrace.log 2>&1 &
echo $! > /tmp/bpftrace.pid"#,
        // It waits for output of its programs only when all are attached.
        ready: r#"kill -0 $(cat /tmp/bpftrace.pid) || { cat /tmp/bpftrace.log >&2; exit 1; }
grep -Eq "ep_poll|epoll_wait" /proc/$(cat /tmp/bpftrace.pid)/wchan"#,
        events: r#"kill -INT $(cat /tmp/bpftrace.pid); while [ -e /proc/$(cat /tmp/bpftrace.pid)/exe ]; do sleep 0.1; done
awk '$1 == "@events:" { n = $2 } /[Ll]ost/ { lost = $0 } END { print n + 0, "events", lost }' /tmp/bpftrace.log"#,
    },
    Known {
        name: "lttng",
        about: "LTTng, all system calls",
        packages: &["lttng-tools", "babeltrace2"],
        mem_mib: 2048,
        // babeltrace2 counts what is in the trace. The daemon loads the modules, and finds none without the kernel's list of what is built in.
        set_up: r#"cd /lib/modules/$(uname -r) && touch modules.order modules.builtin modules.builtin.modinfo && depmod -a
lttng-sessiond --daemonize > /tmp/lttng.log 2>&1 &&
lttng create kprism --output=/tmp/lttng >> /tmp/lttng.log 2>&1 &&
lttng enable-event --kernel --syscall --all >> /tmp/lttng.log 2>&1 &&
lttng start >> /tmp/lttng.log 2>&1 || { cat /tmp/lttng.log >&2; exit 1; }"#,
        ready: "",
        events: r#"lttng stop > /dev/null
lost=$(lttng list kprism | awk '/Discarded events/ { n += $3 } END { print n + 0 }')
kept=$(babeltrace2 --component=source.ctf.fs --params='inputs=["/tmp/lttng/kernel"]' --component=sink.utils.counter --params=hide-zero=true | awk '/ Event message/ { print $1; exit }')
echo "${kept:?babeltrace2 counted no events} events, $lost lost; $(du -sk /tmp/lttng | cut -f 1) KiB written""#,
    },
];

/// Needs modules that are not the kernel's own.
pub const LTTNG: &str = "lttng";

/// All names.
pub fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|t| t.name).collect()
}

/// The tracer of a name.
pub fn find(name: &str) -> Option<Tracer> {
    let known = KNOWN.iter().find(|t| t.name == name)?;
    Some(Tracer {
        name: known.name.into(),
        about: known.about.into(),
        packages: known.packages.iter().map(|&p| p.to_owned()).collect(),
        mem_mib: known.mem_mib,
        set_up: known.set_up.into(),
        ready: known.ready.into(),
        events: known.events.into(),
    })
}

impl Tracer {
    /// One of the user's: switched on by `command`.
    pub fn of_user(name: &str, command: &str) -> Self {
        Self {
            name: name.into(),
            about: format!("`{command}`"),
            packages: Vec::new(),
            mem_mib: 0,
            set_up: command.into(),
            ready: String::new(),
            events: String::new(),
        }
    }

    /// The shell's lines that switch it on and wait until it is at work.
    pub fn script(&self) -> String {
        let mut script = format!("set -e\n{}\n", self.set_up);
        if !self.ready.is_empty() {
            let (name, ready) = (&self.name, &self.ready);
            script += &format!(
                "ready() {{\n{ready}\n}}\nn=0\nuntil ready; do\nn=$((n + 1))\n[ $n -lt 1200 ] || {{ echo '{name} is \
                 not ready after two minutes' >&2; exit 1; }}\nsleep 0.1\ndone\n"
            );
        }
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_serve_as_folders_and_differ() {
        let mut names = names();
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')));
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
