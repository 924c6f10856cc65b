// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism report func` of a trace that holds events but no calls of functions: the function tracer's, those of kprobes, a
//! few tracepoints. What is there, by name and task, with its first and last time.

use std::collections::HashMap;
use std::io::Write;

use anyhow::Result;
use kprism_durations::ftrace::Collector;
use kprism_ftrace::show::Describe;
use kprism_ftrace::{Data, Event, UNKNOWN_PID};
use kprism_profile::units::grouped;
use kprism_profile::{Profile, Task};
use kprism_report::header::account_text;
use kprism_report::table::{Cell, Column, Table};
use kprism_store::{Instrument, Run};
use serde_json::json;

use super::func::View;
use super::report::print_json;
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::durations::{self, Consumer};

const COLUMNS: &[(&str, &str)] = &[
    ("count", "count"),
    ("event", "event"),
    ("pid", "pid"),
    ("comm", "comm"),
    ("first_ns", "first"),
    ("last_ns", "last"),
];

#[derive(Default)]
struct Seen {
    count: u64,
    first_ns: u64,
    last_ns: u64,
    comm: String,
}

/// Shows them; nothing if there are none.
pub fn run(run: &Run, view: &View<'_>, progress: &Progress, out: &mut dyn Write) -> Result<Option<Outcome>> {
    progress.step("reading the events");
    let mut seen: HashMap<(String, u32), Seen> = HashMap::new();
    let mut visit = |collector: &mut Collector<'_>, event: &Event<'_>, describe: Describe<'_>| {
        if let Some(name) = name(event, describe) {
            let Event { ns, cpu, pid, .. } = *event;
            let of = seen.entry((name, pid)).or_insert_with(|| Seen { first_ns: ns, ..Seen::default() });
            of.count += 1;
            (of.first_ns, of.last_ns) = (of.first_ns.min(ns), of.last_ns.max(ns));
            if of.comm.is_empty() {
                of.comm = match pid {
                    0 => format!("swapper/{cpu}"),
                    UNKNOWN_PID => "?".into(),
                    _ => collector.comm(pid).map_or_else(|| format!("<{pid}>"), str::to_owned),
                };
            }
        }
        true
    };
    durations::again(run, &mut Consumer::Events(&mut visit))?;
    progress.clear();
    if seen.is_empty() {
        return Ok(None);
    }
    let total: u64 = seen.values().map(|of| of.count).sum();
    let mut rows: Vec<((String, u32), Seen)> = seen.into_iter().collect();
    rows.sort_by(|(a, x), (b, y)| y.count.cmp(&x.count).then_with(|| a.cmp(b)));
    let pid = |pid: u32| if pid == UNKNOWN_PID { 0 } else { pid };
    let task = |((_, number), of): &((String, u32), Seen)| Task {
        pid: pid(*number),
        tgid: pid(*number),
        comm: of.comm.clone(),
        root: 0,
    };
    let profile = Profile { tasks: rows.iter().map(task).collect(), ..Profile::default() };
    let mut taken = view.filter.tasks(&profile).into_iter();
    rows.retain(|_| taken.next().unwrap_or(false));
    if rows.is_empty() {
        progress.say("no task matches");
        return Ok(Some(Outcome::NothingMatched));
    }
    let cells = |((name, number), of): ((String, u32), Seen)| {
        let (first, last) = (Cell::Ns(of.first_ns), Cell::Ns(of.last_ns));
        let who = Cell::Int(u64::from(pid(number)));
        vec![Cell::Int(of.count), Cell::Text(name), who, Cell::Text(of.comm), first, last]
    };
    let columns = COLUMNS.iter().map(|&(key, head)| Column { key, head: head.into() }).collect();
    let mut table = Table { columns, rows: rows.into_iter().map(cells).collect(), hidden: 0 };
    if let Some(key) = view.sort {
        table.sort_by(key)?;
    }
    if view.rows > 0 {
        table.limit(view.rows);
    }
    if view.csv {
        out.write_all(table.to_csv().as_bytes())?;
        return Ok(Some(Outcome::Done));
    }
    let account = run.manifest()?.accounts.remove(&Instrument::Durations);
    if view.json {
        let counts = json!({"events": total, "calls": 0, "account": account});
        print_json(&json!({"run": counts, "rows": table.to_json(), "hidden": table.hidden}), out)?;
        return Ok(Some(Outcome::Done));
    }
    writeln!(out, "{} events and no calls of functions; one by one: kprism script\n", grouped(total))?;
    write!(out, "{}\n{}", table.to_text(view.style), account_text(account.as_ref(), view.style))?;
    Ok(Some(Outcome::Done))
}

/// What an event is called.
fn name(event: &Event<'_>, describe: Describe<'_>) -> Option<String> {
    match &event.data {
        Data::Switch { .. } => Some("sched_switch".into()),
        Data::IrqEnter => Some("interrupt".into()),
        Data::Lost { .. } | Data::Stack(_) | Data::IrqExit | Data::Entry { .. } | Data::Exit(_) => None,
        Data::Raw { id, .. } => {
            let mut said = Vec::new();
            if !describe(event, &mut said) {
                return Some(format!("event {id} (no format)"));
            }
            let end = said.iter().position(|&byte| byte == b':').unwrap_or(said.len());
            Some(String::from_utf8_lossy(&said[..end]).into_owned())
        }
        Data::Text(text) => {
            // The function tracer's: `vfs_read <-ksys_read`.
            let end = text.find(": ").or_else(|| text.find(" <-")).unwrap_or(text.len());
            Some(text[..end].trim_end_matches(':').to_owned())
        }
    }
}
