// SPDX-License-Identifier: MIT OR Apache-2.0
//! A moment as an event of CTF. In: a moment. Out: its name and fields, those of LTTng where it has such an event.
//!
//! If the kernel's own tracepoint was recorded beside the flow, the short name is the tracepoint's, as it has more fields: the
//! flow's is then called `flow_…`. So no event of an analysis comes twice.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use kprism_session::moments::{Kind, Moment, Phase};
use serde_json::Value;

/// An event: its name, its thread, its fields in order.
pub(super) struct Event<'m> {
    pub name: String,
    pub tid: i64,
    pub comm: &'m str,
    pub fields: Vec<(Cow<'m, str>, Field<'m>)>,
}

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Field<'m> {
    /// A number.
    Number(i64),
    /// A number that only fits without a sign.
    Large(u64),
    /// A floating point number.
    Float(f64),
    /// A text.
    Text(Cow<'m, str>),
}

/// Chooses names. It remembers which are taken.
pub(super) struct Names {
    /// Short names of recorded tracepoints, and the system that has each.
    systems: BTreeMap<String, String>,
    /// The last known name of each thread: a new one has that of its parent.
    comms: BTreeMap<u64, String>,
    lacking: bool,
}

/// Names that the flow's own events have.
const OF_FLOW: &[&str] = &["sched_switch", "sched_process_fork"];

impl Names {
    /// For a run with these tracepoints, as `SYSTEM/NAME`.
    pub fn new(recorded: &[String]) -> Self {
        let mut systems = BTreeMap::new();
        // In order of the alphabet, so that the same run always gets the same names.
        for (system, name) in
            recorded.iter().collect::<BTreeSet<_>>().iter().filter_map(|n| n.split_once('/'))
        {
            systems.entry(name.to_owned()).or_insert_with(|| system.to_owned());
        }
        Names { systems, comms: BTreeMap::new(), lacking: false }
    }

    /// True if there were switches of the flow alone: they have no state of the task that left.
    pub fn switches_lack_a_state(&self) -> bool {
        self.lacking
    }

    fn own(&self, name: &str) -> String {
        match OF_FLOW.contains(&name) && self.systems.contains_key(name) {
            true => format!("flow_{}", name.trim_start_matches("sched_")),
            false => name.to_owned(),
        }
    }

    /// The event of a moment.
    pub fn of<'m>(&mut self, moment: &'m Moment) -> Event<'m> {
        let is_begin = moment.phase == Phase::Begin;
        let mut fields: Vec<(Cow<'m, str>, Field<'m>)> = Vec::new();
        let text = |text: &'m str| Field::Text(Cow::Borrowed(text));
        if let Some(ns) = moment.length_ns() {
            fields.push(("length_ns".into(), number(ns)));
        }
        if let Some(ending) = moment.unended() {
            fields.push(("ending".into(), text(ending.name())));
        }
        let name = match moment.kind {
            Kind::Mark if moment.name == "fork" => {
                self.fork(moment, &mut fields);
                self.own("sched_process_fork")
            }
            Kind::Mark if moment.name == "name" => {
                self.remember(moment.pid.map(u64::from), arg(moment, "comm").and_then(Value::as_str));
                "task_name".to_owned()
            }
            Kind::Mark => format!("command_{}", moment.name),
            Kind::Switch => {
                self.remember(
                    arg(moment, "next_pid").and_then(Value::as_u64),
                    arg(moment, "next_comm").and_then(Value::as_str),
                );
                let name = self.own("sched_switch");
                fields.push(("prev_comm".into(), text(&moment.comm)));
                if name == "sched_switch" {
                    self.lacking = true;
                    fields.extend(
                        ["prev_prio", "prev_state", "next_prio"].map(|name| (name.into(), Field::Number(0))),
                    );
                }
                name
            }
            Kind::Window => if is_begin { "flow_begin" } else { "flow_end" }.to_owned(),
            Kind::Coverage => "coverage_window".to_owned(),
            Kind::Irqs => "irqs_off".to_owned(),
            Kind::Syscall => format!("syscall_{}_{}", if is_begin { "entry" } else { "exit" }, moment.name),
            Kind::Call => {
                fields.push(("name".into(), text(&moment.name)));
                if is_begin { "func_entry" } else { "func_exit" }.to_owned()
            }
            Kind::Packet => format!("intel_pt_{}", moment.name.to_lowercase().replace(' ', "_")),
            Kind::Event => self.tracepoint(&moment.name),
            Kind::Lost => "events_lost".to_owned(),
            Kind::Probe => format!("probe:{}", moment.name),
            Kind::Tlb if moment.phase == Phase::Point => "tlb_miss".to_owned(),
            Kind::Tlb => "tlb_misses".to_owned(),
            Kind::Console => {
                fields.push(("msg".into(), text(&moment.name)));
                "printk_console".to_owned()
            }
        };
        // LTTng calls the number of a thread what it is.
        let threads = matches!(moment.kind, Kind::Switch) || moment.name.starts_with("sched:");
        if moment.kind != Kind::Mark || moment.name != "fork" {
            for (key, value) in &moment.args {
                fields.push((if threads { thread(key) } else { Cow::Borrowed(key) }, field(key, value)));
            }
        }
        Event { name, tid: moment.pid.map_or(-1, i64::from), comm: &moment.comm, fields }
    }

    /// The name of a recorded tracepoint: LTTng has no systems. The second of the same name keeps its system.
    fn tracepoint(&self, name: &str) -> String {
        match name.split_once(':') {
            Some((system, short)) if self.systems.get(short).is_some_and(|own| own == system) => {
                short.to_owned()
            }
            _ => name.to_owned(),
        }
    }

    fn fork<'m>(&mut self, moment: &'m Moment, fields: &mut Vec<(Cow<'m, str>, Field<'m>)>) {
        let parent = u64::from(moment.pid.unwrap_or(0));
        let of = |name: &str| arg(moment, name).and_then(Value::as_u64).unwrap_or(0);
        let comm = self.comms.get(&parent).cloned().unwrap_or_default();
        let (tid, pid) = (of("child_pid"), of("child_tgid"));
        self.remember(Some(tid), Some(&comm));
        let text = |text: &str| Field::Text(Cow::Owned(text.to_owned()));
        fields.extend([
            ("parent_comm".into(), text(&comm)),
            ("parent_tid".into(), number(parent)),
            ("child_comm".into(), text(&comm)),
            ("child_tid".into(), number(tid)),
            ("child_pid".into(), number(pid)),
        ]);
    }

    fn remember(&mut self, thread: Option<u64>, comm: Option<&str>) {
        if let (Some(thread), Some(comm)) = (thread, comm) {
            self.comms.insert(thread, comm.to_owned());
        }
    }
}

fn arg<'m>(moment: &'m Moment, name: &str) -> Option<&'m Value> {
    moment.args.iter().find(|(own, _)| own == name).map(|(_, value)| value)
}

/// `pid` and `…_pid` of the kernel's scheduler are numbers of threads.
fn thread(key: &str) -> Cow<'_, str> {
    match key.strip_suffix("pid") {
        Some(rest) if rest.is_empty() || rest.ends_with('_') => Cow::Owned(format!("{rest}tid")),
        _ => Cow::Borrowed(key),
    }
}

fn number(number: u64) -> Field<'static> {
    i64::try_from(number).map_or(Field::Large(number), Field::Number)
}

/// A value as CTF has it. A name is text, also one of digits alone.
fn field<'m>(key: &str, value: &'m Value) -> Field<'m> {
    let is_name = key == "name" || key.ends_with("comm");
    match value {
        Value::String(text) => Field::Text(Cow::Borrowed(text)),
        Value::Bool(is) => Field::Number((*is).into()),
        Value::Number(all) if !is_name => match (all.as_i64(), all.as_u64(), all.as_f64()) {
            (Some(n), ..) => Field::Number(n),
            (_, Some(n), _) => Field::Large(n),
            (.., n) => Field::Float(n.unwrap_or(f64::NAN)),
        },
        other => Field::Text(Cow::Owned(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use kprism_profile::Ending;

    use super::*;

    fn moment(kind: Kind, name: &str, args: &[(&str, Value)]) -> Moment {
        Moment {
            ns: 5,
            cpu: Some(0),
            pid: Some(7),
            comm: "a".to_owned(),
            kind,
            phase: Phase::Point,
            name: name.to_owned(),
            args: args.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        }
    }

    fn told(names: &mut Names, moment: &Moment) -> (String, Vec<String>) {
        let event = names.of(moment);
        let fields = event.fields.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        (event.name, fields)
    }

    #[test]
    fn a_tracepoint_takes_the_short_name() {
        let switch = moment(Kind::Switch, "switch", &[("prev_pid", 7.into()), ("next_pid", 8.into())]);
        let mut alone = Names::new(&[]);
        assert_eq!(told(&mut alone, &switch).0, "sched_switch");
        assert!(alone.switches_lack_a_state());
        let all = ["sched/sched_switch", "b/x", "a/x"].map(str::to_owned);
        let mut both = Names::new(&all);
        assert_eq!(told(&mut both, &switch).0, "flow_switch");
        let (name, fields) =
            told(&mut both, &moment(Kind::Event, "sched:sched_switch", &[("prev_pid", 7.into())]));
        assert_eq!((name.as_str(), fields[0].as_str()), ("sched_switch", "prev_tid=Number(7)"));
        assert!(!both.switches_lack_a_state());
        assert_eq!(told(&mut both, &moment(Kind::Event, "a:x", &[])).0, "x");
        assert_eq!(told(&mut both, &moment(Kind::Event, "b:x", &[])).0, "b:x");
    }

    /// A call that leaves its stack is no call that ended: its exit has a reason, and no length.
    #[test]
    fn exits_of_calls_that_did_not_end_are_told_apart() {
        let mut names = Names::new(&[]);
        let mut exit = moment(Kind::Call, "f", &[("depth", 2.into())]);
        let mut fields = |names: &mut Names, phase| {
            exit.phase = phase;
            told(names, &exit)
        };
        let (name, seen) = fields(&mut names, Phase::End(9));
        assert_eq!(
            (name.as_str(), &seen[..]),
            (
                "func_exit",
                &["length_ns=Number(9)", "name=Text(\"f\")", "depth=Number(2)"].map(str::to_owned)[..]
            )
        );
        for (ending, word) in [(Ending::Left, "left"), (Ending::Untraced, "untraced")] {
            let (name, cut) = fields(&mut names, Phase::Unended { ns: 9, ending });
            assert_eq!((name.as_str(), &*cut[0]), ("func_exit", &*format!("ending=Text(\"{word}\")")));
            assert!(!cut.iter().any(|field| field.starts_with("length_ns")), "{cut:?}");
        }
    }

    #[test]
    fn a_name_of_digits_is_text_and_a_child_has_its_parents() {
        let mut names = Names::new(&[]);
        let named = moment(Kind::Mark, "name", &[("comm", 12.into())]);
        assert_eq!(told(&mut names, &named).1, ["comm=Text(\"12\")"]);
        told(&mut names, &moment(Kind::Mark, "name", &[("comm", "sh".into())]));
        let fork = moment(Kind::Mark, "fork", &[("child_pid", 9.into()), ("child_tgid", 9.into())]);
        let (name, fields) = told(&mut names, &fork);
        assert_eq!((name.as_str(), fields[2].as_str()), ("sched_process_fork", "child_comm=Text(\"sh\")"));
        assert_eq!(fields[1], "parent_tid=Number(7)");
        let large = moment(Kind::Packet, "PTWRITE", &[("says", u64::MAX.into())]);
        let (name, fields) = told(&mut names, &large);
        assert_eq!(
            (name.as_str(), fields[0].as_str()),
            ("intel_pt_ptwrite", "says=Large(18446744073709551615)")
        );
    }
}
