// SPDX-License-Identifier: MIT OR Apache-2.0
//! The split of known calls' time: nesting, recursion, migration, waiting, interrupts, losses.

use std::sync::Arc;

use kprism_durations::ftrace::Collector;
use kprism_durations::record::CallRecord;
use kprism_durations::rows::{self, Row};
use kprism_durations::{Measured, Names, Switch};
use kprism_ftrace::{Context, Data, Event, Exit, Func};

/// A trace built event by event.
struct Trace {
    collector: Collector<'static>,
    cpu: u32,
    context: Context,
}

impl Trace {
    fn new() -> Self {
        let collector = Collector::new(Names::default(), true);
        Trace { collector, cpu: 0, context: Context::Task }
    }

    fn tell(&mut self, ns: u64, pid: u32, data: Data<'_>) {
        let (cpu, context) = (self.cpu, self.context);
        self.collector.event(&Event { ns, cpu, pid, context, data });
    }

    fn entry(&mut self, ns: u64, pid: u32, name: &str, depth: u32) {
        self.tell(ns, pid, Data::Entry { func: Func::Name(name), depth });
    }

    fn exit(&mut self, ns: u64, pid: u32, name: &str, depth: u32, call_ns: u64) {
        let func = Some(Func::Name(name));
        let exit = Exit { func, depth, call_ns: Some(call_ns), ret_ns: Some(ns), overrun: 0 };
        self.tell(ns, pid, Data::Exit(exit));
    }

    fn switch(&mut self, ns: u64, prev_pid: u32, next_pid: u32) {
        self.tell(ns, prev_pid, Data::Switch { prev_pid, prev_comm: b"a", next_pid, next_comm: b"b" });
    }

    fn finish(self) -> Measured {
        self.collector.finish(|_| None)
    }
}

fn row(measured: &Measured, name: &str) -> Row {
    let taken = vec![true; measured.profile.tasks.len()];
    let rows = rows::functions(&measured.profile, &measured.times, &taken);
    let named = |r: &&Row| measured.profile.funcs[r.func as usize].name == name;
    *rows.iter().find(named).unwrap_or_else(|| panic!("no {name}"))
}

/// Number of calls, total, self time, time off the CPU, time in interrupts.
fn of(measured: &Measured, name: &str) -> [u64; 5] {
    let r = row(measured, name);
    [r.calls, r.total_ns, r.self_ns, r.off_ns, r.irq_ns]
}

#[test]
fn recursion_counts_once_in_total_and_every_time_in_sum() {
    let mut t = Trace::new();
    t.entry(0, 1, "f", 0);
    t.entry(10, 1, "f", 1);
    t.entry(20, 1, "g", 2);
    t.exit(50, 1, "g", 2, 20);
    t.exit(80, 1, "f", 1, 10);
    t.exit(100, 1, "f", 0, 0);
    let m = t.finish();
    assert_eq!(of(&m, "f"), [2, 100, 70, 0, 0]);
    assert_eq!(row(&m, "f").sum_ns, 170);
    assert_eq!(of(&m, "g"), [1, 30, 30, 0, 0]);
}

#[test]
fn waiting_and_migration_are_off_the_cpu_wherever_the_task_goes_on() {
    for told in [true, false] {
        let mut t = Trace::new();
        t.entry(0, 1, "read", 0);
        t.entry(10, 1, "wait", 1);
        if told {
            t.switch(20, 1, 2);
        }
        // Without an event, the other task's first event shows the switch.
        t.entry(20, 2, "other", 0);
        t.cpu = 1;
        if told {
            t.switch(70, 0, 1);
        }
        t.entry(70, 1, "woken", 2);
        t.exit(75, 1, "woken", 2, 70);
        t.exit(90, 1, "wait", 1, 10);
        t.exit(100, 1, "read", 0, 0);
        t.cpu = 0;
        t.exit(120, 2, "other", 0, 20);
        let m = t.finish();
        assert_eq!(of(&m, "read"), [1, 100, 20, 50, 0], "told: {told}");
        assert_eq!(of(&m, "wait"), [1, 80, 25, 50, 0], "told: {told}");
        assert_eq!(of(&m, "other"), [1, 100, 100, 0, 0], "told: {told}");
    }
}

#[test]
fn interrupts_are_told_apart_by_context_by_name_and_by_events() {
    let mut t = Trace::new();
    t.entry(0, 1, "work", 0);
    t.context = Context::Hardirq;
    t.entry(10, 1, "handler", 1);
    t.entry(12, 1, "inner", 2);
    t.exit(18, 1, "inner", 2, 12);
    t.exit(30, 1, "handler", 1, 10);
    t.context = Context::Task;
    t.entry(30, 1, "irq_exit_rcu", 1);
    t.exit(35, 1, "irq_exit_rcu", 1, 30);
    t.tell(40, 1, Data::IrqEnter);
    t.entry(42, 1, "in_event", 1);
    t.exit(45, 1, "in_event", 1, 42);
    t.tell(60, 1, Data::IrqExit);
    t.exit(100, 1, "work", 0, 0);
    let m = t.finish();
    // 20 by context, 5 by name, 20 by an event, of which 3 belong to a function.
    assert_eq!(of(&m, "work"), [1, 100, 55, 0, 45]);
    assert_eq!(of(&m, "handler"), [1, 20, 14, 0, 0]);
    assert_eq!(of(&m, "in_event"), [1, 3, 3, 0, 0]);
}

#[test]
fn calls_of_which_only_the_ends_were_kept_are_put_together() {
    let mut t = Trace::new();
    t.exit(40, 1, "c", 2, 20);
    t.exit(60, 1, "b", 1, 10);
    t.exit(90, 1, "b", 1, 65);
    t.exit(100, 1, "a", 0, 0);
    t.exit(150, 1, "schedule", 0, 110);
    let m = t.finish();
    assert_eq!(of(&m, "a"), [1, 100, 25, 0, 0]);
    assert_eq!(of(&m, "b"), [2, 75, 55, 0, 0]);
    assert_eq!(of(&m, "c"), [1, 20, 20, 0, 0]);
    assert_eq!(of(&m, "schedule"), [1, 40, 0, 40, 0]);
    let is_b = |f: u32| m.profile.funcs[f as usize].name == "b";
    let callers = rows::callers(&m.profile, &m.times, &[true], is_b);
    let caller = callers[0].0.map(|f| m.profile.funcs[f as usize].name.as_str());
    assert_eq!((callers.len(), caller, callers[0].1.calls), (1, Some("a"), 2));
    // Outer slices come before the slices inside them.
    let slices: Vec<_> = m.profile.slices.iter().map(|s| (s.start_ns, s.end_ns, s.depth)).collect();
    assert_eq!(slices, [(0, 100, 0), (10, 60, 1), (20, 40, 2), (65, 90, 1), (110, 150, 0)]);
}

#[test]
fn a_loss_ends_what_it_must_and_nothing_else() {
    let mut t = Trace::new();
    t.entry(0, 1, "outer", 0);
    t.entry(10, 1, "lost_exit", 1);
    t.tell(500_000, 1, Data::Lost { count: Some(7) });
    // The exit of `lost_exit` and another call of it were lost; this one began after the loss.
    t.exit(600_000, 1, "lost_exit", 1, 550_000);
    t.exit(700_000, 1, "outer", 0, 0);
    // An exit from before the trace, without a start time.
    t.tell(800_000, 1, Data::Exit(Exit { func: None, depth: 3, call_ns: None, ret_ns: None, overrun: 0 }));
    // An exit before its entry: the clock jumped.
    t.entry(900_000, 1, "jump", 0);
    t.exit(850_000, 1, "jump", 0, 900_000);
    let m = t.finish();
    assert_eq!(of(&m, "outer")[..2], [1, 700_000]);
    assert_eq!(of(&m, "lost_exit")[..2], [1, 50_000]);
    assert_eq!(of(&m, "jump")[..3], [1, 0, 0]);
    let counts = m.times.counts;
    assert_eq!((counts.lost, counts.unfinished, counts.orphans, counts.clock_jumps), (7, 1, 1, 1));
    let outer = m.profile.funcs.iter().position(|f| f.name == "outer").expect("outer");
    assert_eq!(m.times.funcs[outer].gapped, 1);
}

#[test]
fn kept_calls_know_what_was_not_kept() {
    let mut collector = Collector::new(Names::default(), true);
    let call = |func, enter_ns, exit_ns, depth, child_ns, off_ns| CallRecord {
        func,
        enter_ns,
        exit_ns,
        pid: 5,
        tgid: 4,
        depth,
        child_ns,
        off_ns,
        comm: *b"dd\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ..CallRecord::default()
    };
    collector.kept(&call(3, 12, 20, 2, 0, 3));
    collector.kept(&call(2, 10, 40, 1, 5, 8));
    // Besides the 22 ns of function 2, it spent 18 ns in calls that were not kept, and 20 ns off the CPU.
    collector.kept(&call(1, 0, 100, 0, 40, 20));
    collector.kept(&call(4, 110, 150, 0, 0, 39));
    let m = collector.finish(|address| {
        let name = if address == 4 { "schedule".to_owned() } else { format!("f{address}") };
        Some((name, "[kernel]".into()))
    });
    assert_eq!(of(&m, "f1"), [1, 100, 40, 20, 0]);
    assert_eq!(of(&m, "f2"), [1, 30, 17, 8, 0]);
    assert_eq!(of(&m, "f3"), [1, 8, 5, 3, 0]);
    assert_eq!(of(&m, "schedule"), [1, 40, 1, 39, 0]);
    assert_eq!((m.profile.tasks[0].tgid, m.profile.tasks[0].comm.as_str()), (4, "dd"));
}

#[test]
fn a_sleep_in_the_first_call_seen_of_a_task_is_known() {
    let mut t = Trace::new();
    t.switch(10_000, 7, 8);
    t.switch(20_000, 8, 7);
    // The task slept before the call began.
    t.switch(120_000, 7, 8);
    t.switch(170_000, 8, 7);
    // Only long calls are kept, by their exits.
    t.exit(200_000, 7, "sleeper", 0, 100_000);
    let m = t.finish();
    assert_eq!(of(&m, "sleeper"), [1, 100_000, 50_000, 50_000, 0]);
    assert_eq!(m.profile.tasks.len(), 1, "tasks that call nothing are none");
}

/// `sched_switch` comes before the change to the other task's stack. With all functions traced, the functions in
/// between come after it, still in the leaving task.
#[test]
fn what_a_task_does_on_its_way_out_does_not_bring_it_back() {
    let mut t = Trace::new();
    t.entry(0, 1, "nanosleep", 0);
    t.entry(10, 1, "schedule", 1);
    t.entry(18, 1, "__traceiter_sched_switch", 2);
    t.switch(20, 1, 2);
    t.exit(21, 1, "__traceiter_sched_switch", 2, 18);
    t.entry(22, 1, "switch_mm", 2);
    t.exit(26, 1, "switch_mm", 2, 22);
    t.entry(27, 1, "switch_fpu", 2);
    t.exit(30, 1, "switch_fpu", 2, 27);
    t.entry(40, 2, "other", 0);
    t.entry(900, 2, "schedule", 1);
    t.switch(1000, 2, 1);
    t.entry(1005, 2, "switch_mm", 2);
    t.exit(1010, 2, "switch_mm", 2, 1005);
    t.exit(1050, 1, "schedule", 1, 10);
    t.exit(1060, 1, "nanosleep", 0, 0);
    let m = t.finish();
    // Off the CPU at 30, when its last function before the other task returned; back at 1010 in the same way.
    assert_eq!(of(&m, "nanosleep"), [1, 1060, 20, 980, 0]);
    let row = row(&m, "schedule");
    assert_eq!((row.calls, row.total_ns, row.self_ns, row.off_ns), (1, 1040, 50, 980));
    assert_eq!(of(&m, "switch_mm"), [2, 9, 9, 0, 0]);
    assert_eq!(of(&m, "switch_fpu"), [1, 3, 3, 0, 0]);
}

/// The switch that brings the task back may be filtered out or lost.
#[test]
fn a_task_whose_return_is_not_told_is_back_with_what_only_it_can_do() {
    // A call that was open when it left ends.
    let mut t = Trace::new();
    t.entry(0, 1, "read", 0);
    t.switch(20, 1, 2);
    t.exit(100, 1, "read", 0, 0);
    // Another task ran there in between.
    t.entry(200, 1, "write", 0);
    t.switch(220, 1, 2);
    t.entry(230, 2, "other", 0);
    t.entry(300, 1, "copy", 1);
    t.exit(310, 1, "copy", 1, 300);
    t.exit(320, 1, "write", 0, 200);
    // It continues on another CPU.
    t.entry(400, 1, "poll", 0);
    t.switch(420, 1, 2);
    t.cpu = 1;
    t.entry(500, 1, "copy", 1);
    t.exit(510, 1, "copy", 1, 500);
    t.exit(520, 1, "poll", 0, 400);
    let m = t.finish();
    assert_eq!(of(&m, "read"), [1, 100, 20, 80, 0]);
    assert_eq!(of(&m, "write"), [1, 120, 30, 80, 0]);
    assert_eq!(of(&m, "poll"), [1, 120, 30, 80, 0]);
}

/// A call that did not end has no time in the total, but its callees have, including their waiting.
#[test]
fn no_more_time_off_the_cpu_than_in_all() {
    let mut t = Trace::new();
    t.entry(0, 1, "main", 0);
    t.entry(10, 1, "f", 1);
    t.exit(20, 1, "f", 1, 10);
    t.entry(30, 1, "f", 1);
    t.entry(40, 1, "wait", 2);
    t.switch(50, 1, 2);
    t.switch(950, 2, 1);
    t.exit(960, 1, "wait", 2, 40);
    // The second `f` has no end.
    t.exit(1000, 1, "main", 0, 0);
    let m = t.finish();
    assert_eq!((row(&m, "f").total_ns, row(&m, "f").off_ns), (10, 10));
    assert_eq!((row(&m, "wait").total_ns, row(&m, "wait").off_ns), (920, 900));
    assert_eq!((row(&m, "main").total_ns, row(&m, "main").off_ns), (1000, 900));
}

/// More waits than are kept before the exit of their call: the rest counts as its own time, and the call is counted.
#[test]
fn waits_without_room_are_told() {
    const WAITS: u64 = (1 << 16) + 10;
    for known in [false, true] {
        let mut t = Trace::new();
        t.switch(1, 7, 0);
        if known {
            // The task is known before it waits.
            t.exit(9, 7, "short", 0, 8);
        }
        (1..=WAITS).for_each(|n| {
            t.switch(10 * n, 7, 0);
            t.switch(10 * n + 5, 0, 7);
        });
        let end = 10 * WAITS + 10;
        t.exit(end, 7, "long", 0, 9);
        t.exit(end + 10, 7, "short", 0, end + 5);
        let m = t.finish();
        assert_eq!(m.times.counts.waits_forgotten, 1, "known: {known}");
        let [_, total, own, off, _] = of(&m, "long");
        assert!(own > total - 5 * WAITS && off < 5 * WAITS, "{own} {off} of {total}");
    }
}

#[test]
fn switches_beyond_those_of_the_timeline_are_counted() {
    const KEPT: u64 = 1 << 20;
    let mut t = Trace::new();
    (0..KEPT + 3).for_each(|n| t.switch(n, 0, 0));
    let m = t.finish();
    assert_eq!((m.switches.len() as u64, m.times.counts.switches_dropped), (KEPT, 3));
}

#[test]
fn calls_that_the_timeline_lacks_are_counted() {
    const CALLS: u64 = 1 << 21;
    let mut t = Trace::new();
    (0..CALLS).for_each(|n| t.exit(100 * n + 1 + n % 100, 7, "f", 0, 100 * n));
    let m = t.finish();
    assert_eq!(m.times.counts.calls, CALLS);
    assert!(m.times.counts.slices_dropped > CALLS / 4);
    assert_eq!(m.profile.slices.len() as u64 + m.times.counts.slices_dropped, CALLS);
}

#[test]
fn a_name_is_kept_once_for_all_calls_and_switches_of_its_thread() {
    let mut collector = Collector::new(Names::default(), true);
    let call = |exit_ns, comm: &[u8; 2]| {
        let mut call = CallRecord { func: 1, exit_ns, pid: 5, tgid: 5, ..CallRecord::default() };
        call.comm[..2].copy_from_slice(comm);
        call
    };
    // No UTF-8: the name that is shown differs from the bytes, and is the same each time.
    for (exit_ns, comm) in [(10, b"dd"), (20, b"dd"), (30, b"d\xff"), (40, b"d\xff")] {
        collector.kept(&call(exit_ns, comm));
    }
    assert_eq!((collector.renamed(), collector.comm(5)), (2, Some("d\u{fffd}")));
    let mut t = Trace::new();
    (0..3).for_each(|n| t.switch(20 * n, 7, 0));
    let m = t.finish();
    let sides: [fn(&Switch) -> &Arc<str>; 2] = [|s| &s.prev.1, |s| &s.next.1];
    for side in sides {
        let names: Vec<&Arc<str>> = m.switches.iter().map(side).collect();
        assert!(names.len() == 3 && names.iter().all(|name| Arc::ptr_eq(name, names[0])), "{names:?}");
    }
    assert_eq!((&*m.switches[0].prev.1, &*m.switches[0].next.1), ("a", "b"));
}
