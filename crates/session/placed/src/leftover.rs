// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that a recording left on the target, and their end.

use std::fs;
use std::time::{Duration, Instant};

use kprism_tracefs::guard;

/// Processes below this one, each with its parent.
fn below(root: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // The name, in parentheses, may contain anything; the state and the parent come after it.
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    let all: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let of = found[next];
        found.extend(all.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    found.remove(0);
    found
}

/// Sends a signal to a process group of ours.
pub fn signal_group(leader: u32, signal: i32) {
    if let Ok(leader) = libc::pid_t::try_from(leader) {
        // SAFETY: kill touches no memory of ours.
        unsafe { libc::kill(-leader, signal) };
    }
}

/// Kills the processes below `root`, but not a guard: it puts tracefs back, and then ends.
pub fn kill_below(root: u32) {
    for pid in below(root).into_iter().filter(|&pid| !guard::is_guard(pid)) {
        if let Ok(pid) = libc::pid_t::try_from(pid) {
            // SAFETY: as above.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// Kills all processes below this one, and waits for them and for guards. Orphans have become children of this process
/// ([`adopt`]).
pub fn end_all(patience: Duration) {
    let began = Instant::now();
    let own = std::process::id();
    while !below(own).is_empty() && began.elapsed() < patience {
        kill_below(own);
        // SAFETY: no status is asked for.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Makes this process the parent of all orphans below it.
pub fn adopt() {
    // SAFETY: it takes numbers only. Old kernels refuse it; then orphans escape.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}
