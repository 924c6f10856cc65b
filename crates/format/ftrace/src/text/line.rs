// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the last column of a line of function graph.

use crate::event::Data;

/// Contents of the column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call<'a> {
    /// `name() {`
    Entry { name: &'a str, depth: u32 },
    /// `name();`
    Leaf { name: &'a str, depth: u32 },
    /// `}`, or `} /* name */`
    Exit { name: Option<&'a str>, depth: u32 },
    /// `/* name: what it says */`
    Event(&'a str),
    /// `==========> |`
    IrqEnter,
    /// `<========== |`
    IrqExit,
}

/// Parses the marks of interrupt handlers, which are in the column of durations.
pub(super) fn irq(text: &str) -> Option<Call<'static>> {
    match text.trim() {
        "==========>" => Some(Call::IrqEnter),
        "<==========" => Some(Call::IrqExit),
        _ => None,
    }
}

/// Parses the column. A call at depth 0 is indented by `indent` spaces, each level by two more.
pub(super) fn parse(text: &str, indent: usize) -> Option<Call<'_>> {
    let call = text.trim_start_matches(' ');
    let depth = ((text.len() - call.len()).saturating_sub(indent) / 2) as u32;
    let call = call.trim_end();
    if let Some(call) = irq(call.trim_end_matches('|')) {
        return Some(call);
    }
    if let Some(comment) = call.strip_prefix("/*") {
        return Some(Call::Event(comment.strip_suffix("*/").unwrap_or(comment).trim()));
    }
    if let Some(rest) = call.strip_prefix('}') {
        return Some(Call::Exit { name: closed(rest), depth });
    }
    // Arguments and comments may contain any text, but a name contains no parenthesis.
    let (name, rest) = call.split_once('(')?;
    if name.is_empty() {
        return None;
    }
    // `name() { /* <-caller */`, `name(); /* = 0x0 */`, `name(a=1, b=2); /* … */`
    let says =
        rest.rsplit_once("/*").filter(|_| rest.ends_with("*/")).map_or(rest, |(head, _)| head).trim_end();
    match says.as_bytes().last() {
        Some(b'{') => Some(Call::Entry { name, depth }),
        Some(b';') => Some(Call::Leaf { name, depth }),
        _ => None,
    }
}

/// Returns the name after a closing brace: `/* name */`, `/* name = 0x0 */`, `/* name ret=0x0 */`, `/* = 0x0 */`.
fn closed(rest: &str) -> Option<&str> {
    let comment = rest.trim().strip_prefix("/*")?.strip_suffix("*/")?.trim();
    let mut name = comment;
    for mark in [" = ", " ret="] {
        name = name.split_once(mark).map_or(name, |(head, _)| head);
    }
    let name = name.trim();
    let is_value =
        name.is_empty() || name.starts_with('=') || name.starts_with("ret=") || name.starts_with("(ret");
    (!is_value).then_some(name)
}

/// Parses `prev_comm=bash prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=ls next_pid=2 next_prio=120`, or
/// trace-cmd's `bash:1 [120] S ==> ls:2 [120]`.
pub(super) fn switch(says: &str) -> Option<Data<'_>> {
    let (left, right) = says.split_once(" ==> ")?;
    let side = |text: &'_ str, who: &str| -> Option<(u32, usize, usize)> {
        let (comm_key, pid_key) = (format!("{who}_comm="), format!(" {who}_pid="));
        if let Some(at) = text.find(&comm_key) {
            let begin = at + comm_key.len();
            let pid_at = begin + text[begin..].rfind(&pid_key)?;
            let digits = text[pid_at + pid_key.len()..].split(' ').next()?;
            return Some((digits.parse().ok()?, begin, pid_at));
        }
        let (name, _) = text.split_once(" [")?;
        let (comm, pid) = name.rsplit_once(':')?;
        Some((pid.parse().ok()?, 0, comm.len()))
    };
    let (prev_pid, a, b) = side(left, "prev")?;
    let (next_pid, c, d) = side(right, "next")?;
    let (prev_comm, next_comm) = (&left.as_bytes()[a..b], &right.as_bytes()[c..d]);
    Some(Data::Switch { prev_pid, prev_comm, next_pid, next_comm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_shapes() {
        let entry = |name| Some(Call::Entry { name, depth: 0 });
        let leaf = |name| Some(Call::Leaf { name, depth: 0 });
        let exit = |name| Some(Call::Exit { name, depth: 0 });
        for (text, call) in [
            ("  ext4_readdir [ext4]() {", entry("ext4_readdir [ext4]")),
            ("  f(a=0x1, b=\"x){;\") { /* <-g */", entry("f")),
            ("  f();", leaf("f")),
            ("  f(fd=1); /* = 0x0 */", leaf("f")),
            ("  f(); /* <-g ret=0xff */", leaf("f")),
            ("  }", exit(None)),
            ("  } /* = 0x0 */", exit(None)),
            ("  } /* ret=0x0 */", exit(None)),
            ("  } /* f [ext4] = -2 */", exit(Some("f [ext4]"))),
            ("  } /* f ret=0x0 */", exit(Some("f"))),
            ("  } /* f */", exit(Some("f"))),
            ("  /* sched_wakeup: a } b { */", Some(Call::Event("sched_wakeup: a } b {"))),
            ("  ==========> |", Some(Call::IrqEnter)),
            ("  half a line(", None),
            ("", None),
        ] {
            assert_eq!(parse(text, 2), call, "{text}");
        }
        assert_eq!(parse("      f();", 2), Some(Call::Leaf { name: "f", depth: 2 }));
    }

    #[test]
    fn switches_of_both_spellings() {
        let kernel = "prev_comm=a b prev_pid=1 prev_prio=120 prev_state=S ==> next_comm=x prev_pid=9 next_pid=2 next_prio=120";
        assert_eq!(
            switch(kernel),
            Some(Data::Switch { prev_pid: 1, prev_comm: b"a b", next_pid: 2, next_comm: b"x prev_pid=9" })
        );
        assert_eq!(
            switch("trace-cmd:176 [120] R ==> migration/0:21 [0]"),
            Some(Data::Switch {
                prev_pid: 176,
                prev_comm: b"trace-cmd",
                next_pid: 21,
                next_comm: b"migration/0"
            })
        );
        assert_eq!(switch("x"), None);
    }
}
