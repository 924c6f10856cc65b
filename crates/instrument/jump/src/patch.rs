// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a jump over the instructions at a place, and puts back what was there.
//!
//! The kernel's breakpoint of the uprobe at the place stays registered: it is what other processes of the same program meet, and
//! what this one meets until the jump is written over it. So no hit falls between the two.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::area::NAME;
use crate::displace::JUMP;
use crate::maps;
use crate::process::{Stopped, in_thread};

/// The breakpoint instruction.
const BREAKPOINT: u8 = 0xcc;

/// A jump in a process, and in the children that it forks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// Number of the trampoline's file: processes that map it have the jump.
    pub inode: u64,
    /// The place.
    pub at: u64,
    /// The bytes of the program's file.
    pub file: [u8; JUMP],
    /// The bytes before the jump, with the uprobe's breakpoint.
    pub before: [u8; JUMP],
    /// The jump.
    pub jump: [u8; JUMP],
}

/// The bytes that are put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// Those before the jump: the uprobe is still registered, and the kernel takes its breakpoint out itself.
    Before,
    /// The file's bytes: no uprobe is there any more.
    File,
}

/// Checks the bytes at a place: those of the file that a jump would replace, but for a breakpoint of the kernel.
///
/// # Errors
/// They are others.
pub fn found(stopped: &Stopped, at: u64, file: &[u8]) -> Result<[u8; JUMP], String> {
    let mut bytes = vec![0; file.len()];
    stopped.read(at, &mut bytes).map_err(|error| format!("the code at {at:#x}: {error}"))?;
    let is_whole =
        bytes.get(1..) == file.get(1..) && bytes.first().is_some_and(|b| [BREAKPOINT, file[0]].contains(b));
    match bytes.first_chunk() {
        Some(before) if is_whole => Ok(*before),
        _ => Err("the code there is not that of the file: another tool has changed it".to_owned()),
    }
}

/// Writes the jump, if no thread stays in what it replaces. False if one does. `middle`: the code behind the first instruction, if
/// others are replaced too.
///
/// # Errors
/// The memory cannot be read or written.
pub fn write(stopped: &mut Stopped, patch: &Patch, middle: Option<&Range<u64>>) -> Result<bool, String> {
    if let Some(middle) = middle
        && !stopped.leave(middle)?
    {
        return Ok(false);
    }
    stopped.write(patch.at, &patch.jump).map_err(|error| format!("the code at {:#x}: {error}", patch.at))?;
    Ok(true)
}

/// Puts back what was at these places, in every process that has the jumps. Returns what could not be done.
pub fn undo(patches: &[Patch], to: To) -> Vec<String> {
    let mut failed = Vec::new();
    // A child may be forked from a process that still has the jump, while others are looked at.
    for _ in 0..20 {
        let found = patched(patches);
        if found.is_empty() {
            return Vec::new();
        }
        failed.clear();
        for (pid, patches) in found {
            if let Err(why) = in_thread(|| undo_in(pid, &patches, to)) {
                failed.push(format!("process {pid}: {why}"));
            }
        }
        if !failed.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    failed
}

fn undo_in(pid: u32, patches: &[&Patch], to: To) -> Result<(), String> {
    let stopped = Stopped::seize(pid)?;
    for patch in patches {
        let mut now = [0; JUMP];
        stopped.read(patch.at, &mut now).map_err(|error| error.to_string())?;
        if now == patch.jump {
            let bytes = if to == To::Before { &patch.before } else { &patch.file };
            stopped.write(patch.at, bytes).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// The processes that have jumps, with these.
fn patched(patches: &[Patch]) -> Vec<(u32, Vec<&Patch>)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let of = |pid: u32| {
        let maps = maps::of(pid).ok()?;
        let ours = |inode: u64| {
            maps.iter().any(|map| map.inode == inode && map.executable && map.path.contains(NAME))
        };
        let here: Vec<&Patch> = patches.iter().filter(|patch| ours(patch.inode) && has(pid, patch)).collect();
        (!here.is_empty()).then_some((pid, here))
    };
    pids.filter_map(of).collect()
}

fn has(pid: u32, patch: &Patch) -> bool {
    use std::os::unix::fs::FileExt as _;
    let mut now = [0; JUMP];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"));
    memory.and_then(|memory| memory.read_exact_at(&mut now, patch.at)).is_ok() && now == patch.jump
}
