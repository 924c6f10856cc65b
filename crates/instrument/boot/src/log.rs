// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the lines of `initcall_debug` in the kernel's log, as dmesg prints it (init/main.c, `initcall_debug_start`):
//!
//! ```text
//! [    3.412237] calling  ext4_init_fs+0x0/0x230 [ext4] @ 132
//! [    3.413087] initcall ext4_init_fs+0x0/0x230 [ext4] returned 0 after 577 usecs
//! ```

/// An initcall in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The function's name.
    pub name: String,
    /// Its module.
    pub module: Option<String>,
    /// Id of the task.
    pub pid: u32,
    /// Start time by the log's clock, ns, if lines have times.
    pub start_ns: u64,
    /// Duration in ns and return value, if it ended.
    pub end: Option<(u64, i64)>,
}

/// All initcalls in a log, in order of their start.
pub fn parse(log: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    // Indices of initcalls that have not ended, newest last.
    let mut open: Vec<usize> = Vec::new();
    for line in log.lines() {
        let (ns, text) = timed(line);
        if let Some((symbol, pid)) = text.strip_prefix("calling  ").and_then(|rest| rest.rsplit_once(" @ ")) {
            let (Some((name, module)), Ok(pid)) = (symbol_of(symbol), pid.trim().parse()) else { continue };
            open.push(calls.len());
            calls.push(Call { name, module, pid, start_ns: ns, end: None });
        } else if let Some((symbol, rest)) =
            text.strip_prefix("initcall ").and_then(|rest| rest.split_once(" returned "))
        {
            let Some((name, module)) = symbol_of(symbol) else { continue };
            let same = |&at: &usize| calls[at].name == name && calls[at].module == module;
            let Some(at) = open.iter().rposition(same) else { continue };
            let mut words = rest.split_whitespace();
            let result = words.next().and_then(|word| word.parse().ok());
            let usecs = words.nth(1).and_then(|word| word.parse::<u64>().ok());
            if let (Some(result), Some(usecs)) = (result, usecs) {
                calls[open.remove(at)].end = Some((usecs.saturating_mul(1000), result));
            }
        }
    }
    calls
}

/// A line's time and its text, without the log level in front.
fn timed(line: &str) -> (u64, &str) {
    let line = match line.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((level, rest)) if level.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => line,
    };
    let split = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let Some((time, text)) = split else { return (0, line) };
    // With CONFIG_PRINTK_CALLER the caller follows, also in brackets.
    let text = match text.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((_, text)) => text,
        None => text,
    };
    let ns = time.trim().split_once('.').and_then(|(seconds, rest)| {
        let seconds: u64 = seconds.parse().ok()?;
        let digits = rest.len();
        let fraction: u64 = rest.parse().ok()?;
        let unit = 10u64.checked_pow(9u32.checked_sub(u32::try_from(digits).ok()?)?)?;
        seconds.checked_mul(1_000_000_000)?.checked_add(fraction.checked_mul(unit)?)
    });
    (ns.unwrap_or(0), text)
}

/// `ext4_init_fs+0x0/0x230 [ext4]`: the name, and the module if there is one.
pub(crate) fn symbol_of(text: &str) -> Option<(String, Option<String>)> {
    let (symbol, module) = match text.trim().split_once(" [") {
        Some((symbol, module)) => (symbol, Some(module.trim_end_matches(']').to_owned())),
        None => (text.trim(), None),
    };
    let name = symbol.split_once('+').map_or(symbol, |(name, _)| name);
    (!name.is_empty() && !name.contains(' ')).then(|| (name.to_owned(), module))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_initcall_debug_says() {
        let log = "[    0.000000] Linux version 6.12\n\
            <7>[    3.412237] calling  ext4_init_fs+0x0/0x230 [ext4] @ 132\n\
            [    3.412300] [  T132] calling  helper_init+0x0/0x10 @ 132\n\
            [    3.412400] initcall helper_init+0x0/0x10 returned -19 after 4000 usecs\n\
            [    3.413087] initcall ext4_init_fs+0x0/0x230 [ext4] returned 0 after 577 usecs\n\
            [    3.5] calling  hangs_init+0x0/0x10 @ 1\n\
            calling  @ \ninitcall x returned\n[nonsense] calling  a @ b\n";
        let call = |name: &str, module: Option<&str>, pid, start_ns, end| Call {
            name: name.into(),
            module: module.map(str::to_owned),
            pid,
            start_ns,
            end,
        };
        let expected = [
            call("ext4_init_fs", Some("ext4"), 132, 3_412_237_000, Some((577_000, 0))),
            call("helper_init", None, 132, 3_412_300_000, Some((4_000_000, -19))),
            call("hangs_init", None, 1, 3_500_000_000, None),
        ];
        assert_eq!(parse(log), expected);
    }
}
