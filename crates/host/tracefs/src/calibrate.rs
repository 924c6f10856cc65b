// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurement of the overhead of tracing. It runs before each recording, on the machine that is recorded.
//!
//! The input is an instance with its buffer and threshold set. The output is a [`Cost`]: the time that tracing adds to
//! one call, the part of it that the call's recorded duration contains, and the factor by which a path of many calls
//! slows down with everything switched on. The cost of one call is measured with a function that does almost nothing,
//! called many times with and without the tracer.
//!
//! Each measurement takes the minimum of several rounds, because other activity on the machine can only make a round
//! slower.

use std::ffi::CStr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::functions::Functions;
use crate::tracefs::{self, FUNCTION_GRAPH, Tracefs, join};

const ROUNDS: usize = 5;
const CALLS: u32 = 1000;
const PATHS: u32 = 40;

/// The overhead of tracing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Time added to each traced call, from before its entry to after its return, in ns.
    pub call_ns: u64,
    /// The part of `call_ns` between the two recorded times, in ns. `None` if only long calls are recorded.
    pub inside_ns: Option<u64>,
    /// Factor by which a path through many functions (stat, open, close) slows down.
    pub slowdown: Option<f64>,
}

/// Measures the cost of one traced call. `known` are the kernel's functions, if they were read. Afterwards the instance has its
/// functions, tasks and tracer back.
pub fn call(tracefs: &Tracefs, folder: &str, every_call: bool, known: Option<&Functions>) -> Result<Cost> {
    let wanted = ["__*_sys_getppid".to_owned()];
    let numbers = match known {
        Some(known) => known.numbers(&wanted)?,
        None => Functions::read(tracefs)?.numbers(&wanted)?,
    };
    let words: Vec<String> = numbers.iter().map(usize::to_string).collect();
    let set = |name: &str, values: &[&str]| tracefs::write(&tracefs.path(&join(folder, name)), values);
    let bare = least(CALLS, getppid);
    set("set_ftrace_filter", &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    set("current_tracer", &[FUNCTION_GRAPH])?;
    let traced = own(tracefs, folder, || least(CALLS, getppid))?;
    let inside_ns = every_call.then(|| tracefs.read(&join(folder, "trace")).ok()).flatten();
    let inside_ns = inside_ns.and_then(|text| median(&text));
    set("current_tracer", &["nop"])?;
    set("set_ftrace_filter", &[])?;
    Ok(Cost { call_ns: traced.saturating_sub(bare) / u64::from(CALLS), inside_ns, slowdown: None })
}

/// Time of a path of many calls without tracing, in ns.
pub fn bare_path() -> u64 {
    least(PATHS, path)
}

/// Factor by which the path takes longer with everything switched on. `bare` is its time without tracing, in ns.
pub fn slowdown(tracefs: &Tracefs, folder: &str, bare: u64) -> Result<f64> {
    let traced = own(tracefs, folder, || least(PATHS, path))?;
    Ok((traced as f64 / bare.max(1) as f64).max(1.0))
}

/// Runs `work` with recording on and only the calling thread traced.
fn own<T>(tracefs: &Tracefs, folder: &str, work: impl FnOnce() -> T) -> Result<T> {
    let set = |name: &str, values: &[&str]| tracefs::write(&tracefs.path(&join(folder, name)), values);
    // SAFETY: asks for a number.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) }.to_string();
    set("set_ftrace_pid", &[&thread])?;
    set("tracing_on", &["1"])?;
    let result = work();
    set("tracing_on", &["0"])?;
    set("set_ftrace_pid", &[])?;
    Ok(result)
}

/// Least time of `count` calls of `work` over several rounds, in ns.
fn least(count: u32, work: fn()) -> u64 {
    let round = || {
        let start = Instant::now();
        (0..count).for_each(|_| work());
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or(0)
}

fn getppid() {
    // SAFETY: asks for a number.
    unsafe { libc::syscall(libc::SYS_getppid) };
}

fn path() {
    const FILE: &CStr = c"/dev/null";
    // SAFETY: the name is a string, the structure lives through the call, the descriptor is fresh.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::stat(FILE.as_ptr(), &raw mut stat);
        let file = libc::open(FILE.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::close(file);
        }
    }
}

/// The median duration in a function graph's text, in ns. `None` if the text has no duration.
fn median(text: &str) -> Option<u64> {
    let mut all: Vec<u64> = text
        .lines()
        .filter_map(|line| {
            let number = line.split_once(" us")?.0.split_whitespace().next_back()?;
            let (whole, part) = number.split_once('.')?;
            let (whole, part): (u64, u64) = (whole.parse().ok()?, format!("{part:0<3.3}").parse().ok()?);
            whole.checked_mul(1000)?.checked_add(part)
        })
        .collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_a_text() {
        let text = "# tracer: function_graph\n#\n 0)   0.301 us    |  f();\n 0)               |  g() {\n \
                    0) + 10.2 us     |  }\n 0)   0.299 us    |  f(); /* us */\n garbage us x.y us\n";
        assert_eq!(median(text), Some(301));
        assert_eq!(median("# nothing\n"), None);
    }
}
