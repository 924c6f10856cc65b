// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first part of a line: task, CPU, time. The task's part rarely changes. Mostly only the last three digits of the
//! time change, and are overwritten in the line.

use std::io::Write as _;

use kprism_flow::replay::{Task, TracePosition};
use kprism_profile::units::printable;

use crate::json;
use crate::output::append;
use crate::select::{Field, Fields, Select};

/// Format of the lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

/// The prefix of one lane's lines.
#[derive(Debug)]
pub(crate) struct Prefix {
    form: Form,
    has_time: bool,
    /// True if the task's lines are selected.
    pub taken: bool,
    /// The task and the count of renames for which this is valid.
    task: usize,
    names: u32,
    /// The whole prefix, with the time, and filling up to [`SHORT`] bytes.
    text: Vec<u8>,
    /// Its length without the filling.
    len: usize,
    /// Start and end of the time in it.
    from: usize,
    to: usize,
    tail: &'static [u8],
    /// The time that it shows, in thousands of ns.
    thousands: u64,
}

/// Nearly all prefixes are shorter: they are copied by a few instructions.
const SHORT: usize = 64;

const DIGITS: [[u8; 3]; 1000] = {
    let mut all = [[0; 3]; 1000];
    let mut i = 0;
    while i < 1000 {
        all[i] = [b'0' + (i / 100) as u8, b'0' + (i / 10 % 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    all
};

impl Prefix {
    pub fn new(form: Form, fields: &Fields) -> Self {
        let has_time = fields.has(Field::Time);
        let tail: &[u8] = match form {
            Form::Json => b"",
            Form::Text if has_time => b": ",
            Form::Text => b"",
        };
        Self {
            form,
            has_time,
            taken: false,
            task: usize::MAX,
            names: 0,
            text: vec![0; SHORT],
            len: 0,
            from: 0,
            to: 0,
            tail,
            thousands: u64::MAX,
        }
    }

    /// Updates the prefix for the running task.
    #[inline]
    pub fn follow(&mut self, at: &TracePosition<'_>, fields: &Fields, select: &Select) {
        if self.task != at.task || self.names != at.names {
            self.rebuild(at, fields, select);
        }
    }

    #[inline(never)]
    fn rebuild(&mut self, at: &TracePosition<'_>, fields: &Fields, select: &Select) {
        (self.task, self.names) = (at.task, at.names);
        self.set(at.cpu, &at.tasks[at.task], fields, select);
    }

    /// Sets the task for the following lines.
    pub fn set(&mut self, cpu: u16, task: &Task, fields: &Fields, select: &Select) {
        self.taken = select.takes(cpu, task);
        self.text.clear();
        match self.form {
            Form::Text => text_head(&mut self.text, fields, cpu, task),
            Form::Json => json_head(&mut self.text, fields, cpu, task),
        }
        self.from = self.text.len();
        self.thousands = u64::MAX;
        if !self.has_time {
            self.text.extend_from_slice(self.tail);
        }
        self.fill();
    }

    /// Notes the length of the text, and fills it up.
    fn fill(&mut self) {
        self.len = self.text.len();
        self.text.resize(self.len.max(SHORT), 0);
    }

    /// Appends the prefix at a time.
    #[inline(always)]
    pub fn append(&mut self, out: &mut Vec<u8>, ns: u64) {
        if self.has_time && ns / 1000 != self.thousands {
            self.write_time(ns);
        }
        let start = out.len();
        append::<SHORT>(out, &self.text, self.len);
        if self.has_time && self.thousands != u64::MAX {
            // In the copy: a processor waits if it reads a whole word of which it has just written a part.
            out[start + self.to - 3..start + self.to].copy_from_slice(&DIGITS[(ns % 1000) as usize]);
        }
    }

    #[inline(never)]
    fn write_time(&mut self, ns: u64) {
        self.text.truncate(self.from);
        // Writing to memory cannot fail.
        let _ = match self.form {
            Form::Text => write!(self.text, "{:>5}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000),
            Form::Json => write!(self.text, "\"time_ns\":{ns}"),
        };
        self.to = self.text.len();
        if self.form == Form::Json {
            self.text.push(b',');
        }
        self.text.extend_from_slice(self.tail);
        self.fill();
        // Shorter numbers do not have three digits to overwrite.
        self.thousands = if ns < 1000 && self.form == Form::Json { u64::MAX } else { ns / 1000 };
    }
}

fn text_head(out: &mut Vec<u8>, fields: &Fields, cpu: u16, task: &Task) {
    if fields.has(Field::Comm) {
        let _ = write!(out, "{:>15} ", printable(&task.comm));
    }
    let _ = match (fields.has(Field::Tgid), fields.has(Field::Pid)) {
        (true, true) => write!(out, "{:>6}/{:<6} ", task.tgid, task.pid),
        (true, false) => write!(out, "{:>6} ", task.tgid),
        (false, true) => write!(out, "{:>6} ", task.pid),
        (false, false) => Ok(()),
    };
    if fields.has(Field::Cpu) {
        let _ = write!(out, "[{cpu:03}] ");
    }
}

fn json_head(out: &mut Vec<u8>, fields: &Fields, cpu: u16, task: &Task) {
    out.push(b'{');
    if fields.has(Field::Comm) {
        out.extend_from_slice(b"\"comm\":");
        json::string(out, &task.comm);
        out.push(b',');
    }
    if fields.has(Field::Pid) {
        let _ = write!(out, "\"pid\":{},", task.pid);
    }
    if fields.has(Field::Tgid) {
        let _ = write!(out, "\"tgid\":{},", task.tgid);
    }
    if fields.has(Field::Cpu) {
        let _ = write!(out, "\"cpu\":{cpu},");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(form: Form) -> Prefix {
        let mut prefix = Prefix::new(form, &Fields::default());
        let task = Task { pid: 7, tgid: 7, comm: "a\u{1b}b".to_owned() };
        prefix.set(3, &task, &Fields::default(), &Select::default());
        prefix
    }

    fn at(prefix: &mut Prefix, ns: u64) -> String {
        let mut out = b"before".to_vec();
        prefix.append(&mut out, ns);
        String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned()
    }

    /// Overwriting digits must give the same result as writing the number.
    #[test]
    fn times_are_what_they_are() {
        let (mut text, mut json) = (prefix(Form::Text), prefix(Form::Json));
        let jumps = [0, 1, 8, 9, 10, 99, 100, 998, 999, 1000, 1001, 9_999, 10_000, 1_234_999, 999_999_999];
        let far = [1_000_000_000, 1_000_000_001, 99_999_999_999, 1 << 50, (1 << 50) + 1, u64::MAX];
        for ns in jumps.into_iter().chain(far) {
            let line = at(&mut text, ns);
            let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
            assert_eq!(line, format!("{:>15} {:>6} [003] {seconds:>5}.{rest:09}: ", "a\\u{1b}b", 7));
            let line = at(&mut json, ns);
            let whole: serde_json::Value = serde_json::from_str(&format!("{line}\"x\":0}}")).unwrap();
            assert_eq!((&whole["time_ns"], &whole["comm"]), (&ns.into(), &"a\u{1b}b".into()));
        }
    }
}
