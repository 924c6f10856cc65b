// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the small files next to a trace: task names, process IDs, the clock, buffer statistics.

use std::collections::BTreeMap;

/// Parses `saved_cmdlines` (names by thread) or `saved_tgids` (process IDs by thread): lines `NUMBER REST`. Other lines
/// are skipped.
#[must_use]
pub fn by_pid(text: &[u8]) -> BTreeMap<u32, String> {
    let lines = text.split(|&b| b == b'\n').filter_map(|line| {
        let line = String::from_utf8_lossy(line);
        let (pid, rest) = line.trim_start().split_once(' ')?;
        Some((pid.parse().ok()?, rest.to_owned()))
    });
    lines.collect()
}

/// Returns the selected clock of `trace_clock`: the word in brackets.
#[must_use]
pub fn clock(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let word = match text.split_once('[') {
        Some((_, rest)) => rest.split(']').next()?,
        None => text.trim(),
    };
    (!word.is_empty() && !word.contains(char::is_whitespace)).then(|| word.to_owned())
}

/// Statistics of a buffer: `per_cpu/cpuN/stats`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events in the buffer when the file was read.
    pub entries: u64,
    /// Events overwritten by later ones.
    pub overrun: u64,
    /// Events lost because the buffer was full while another event was being written.
    pub commit_overrun: u64,
    /// Events not written because the buffer was full and not in overwrite mode.
    pub dropped: u64,
    /// Events that were read and removed before.
    pub read: u64,
}

/// Parses `stats`; unknown lines are skipped.
#[must_use]
pub fn stats(text: &[u8]) -> Stats {
    let mut stats = Stats::default();
    for line in String::from_utf8_lossy(text).lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let field = match name.trim() {
            "entries" => &mut stats.entries,
            "overrun" => &mut stats.overrun,
            "commit overrun" => &mut stats.commit_overrun,
            "dropped events" => &mut stats.dropped,
            "read events" => &mut stats.read,
            _ => continue,
        };
        *field = value.trim().parse().unwrap_or(0);
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files() {
        assert_eq!(
            by_pid(b"162 bash\n17 ksoftirqd/0\nx\n5 a b\n"),
            BTreeMap::from([(162, "bash".into()), (17, "ksoftirqd/0".into()), (5, "a b".into())])
        );
        assert_eq!(clock(b"local [global] boot\n").as_deref(), Some("global"));
        assert_eq!(clock(b"x86-tsc").as_deref(), Some("x86-tsc"));
        assert_eq!(clock(b""), None);
        let stats = stats(b"entries: 34139\noverrun: 324186\ncommit overrun: 0\noldest event ts:    87.3\ndropped events: 7\nread events: 1\n");
        assert_eq!(
            stats,
            Stats { entries: 34139, overrun: 324_186, dropped: 7, read: 1, ..Stats::default() }
        );
    }
}
