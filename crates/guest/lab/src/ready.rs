// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots of a guest in which a recorder has made everything ready for a command.
//!
//! Input: a guest from its first snapshot, and a job whose command makes it ready. Output: the same guest with a snapshot from
//! after that, in the cache, by the first snapshot and all that the job consists of. So what is the same for all commands is done
//! once: to switch the kernel's function tracer on takes QEMU seconds.
//!
//! It is made as the first snapshot is, at the agent's stop mark, and for guests with exact time and without disks alone.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use kprism_agent::Message;

use crate::cache::{Cache, Key};
use crate::disk;
use crate::error::{Context, Error, Result};
use crate::files::content;
use crate::hold::Holder;
use crate::lab::Prepared;
use crate::options::{Job, Progress, Report};
use crate::qemu::{PortFiles, Running};
use crate::run::job_arguments;
use crate::snapshot::{self, BOOTS, FACTS, MEMORY, Snapshot};
use crate::tail::{Lines, Tail};

/// Number of these snapshots in the cache.
const KEPT: usize = 4;

/// Maximum time of the job.
const PATIENCE: Duration = Duration::from_secs(300);

/// Interval at which the guest's messages are polled.
const POLL: Duration = Duration::from_millis(3);

/// Returns true if a snapshot of this guest can be made ready for later commands: not with disks, which the job may write to,
/// and not at the host's pace, at which what the job measures depends on the host.
pub fn can_be_ready(prepared: &Prepared) -> bool {
    prepared.machine.has_exact_time() && prepared.images.is_empty()
}

/// The guest after `job`, whose command makes it ready. It has `argv` and `shares` alone. `None` if the command fails: a run in
/// which the same command is tried again tells why.
///
/// # Errors
/// QEMU does not answer, the cache cannot be written, or the user interrupted it.
pub fn made_ready(prepared: &Prepared, job: &Job, report: Report<'_>) -> Result<Option<Prepared>> {
    let cache = Cache::open()?;
    let base = &prepared.snapshot;
    let mut key = Key::default().add("layout 2").add(base.folder.as_os_str().as_encoded_bytes());
    for word in &job.argv {
        key = key.add(word);
    }
    for share in &job.shares {
        key = key.add(&share.guest).add(content(&share.host)?);
    }
    let mut fails = false;
    let need_mib = prepared.machine.mem_mib / 4 + 300;
    let made = cache.entry("ready", &key.finish(), need_mib, |folder| {
        for time in 1..=BOOTS {
            match make(prepared, job, folder, report)? {
                Made::Ready { time_jumped: true } if time < BOOTS => {
                    report(Progress::Step("guest time jumped while the guest was saved: once more"));
                    crate::cache::remove(folder)?;
                    fs::create_dir(folder).at("create", folder)?;
                }
                Made::Ready { .. } => break,
                Made::Failed => {
                    fails = true;
                    return Err(Error::Qemu { reason: "the guest was not made ready".into() });
                }
            }
        }
        Ok(())
    });
    if fails {
        return Ok(None);
    }
    let place = made?;
    cache.keep_recent("ready", &place, KEPT);
    Ok(Some(Prepared { snapshot: Snapshot::read(place)?, ..prepared.clone() }))
}

/// The end of one try.
enum Made {
    /// The snapshot is in the folder.
    Ready {
        /// Guest time jumped while it was made.
        time_jumped: bool,
    },
    /// The command failed.
    Failed,
}

fn make(prepared: &Prepared, job: &Job, folder: &Path, report: Report<'_>) -> Result<Made> {
    report(Progress::Step("making the guest ready, once for these settings"));
    let base = &prepared.snapshot;
    let (machine, memory) = (&prepared.machine, folder.join(MEMORY));
    base.require_memory(machine)?;
    disk::copy(&base.folder.join(MEMORY), &memory)?;
    let files = PortFiles {
        console: folder.join("console.log"),
        control: folder.join("control"),
        stdout: "/dev/null".into(),
        stderr: "/dev/null".into(),
    };
    let mut arguments = job_arguments(job, true, machine.mem_mib, folder)?;
    arguments.extend(["-incoming", "defer", "-S"].map(OsString::from));
    arguments.extend(machine.memory_arguments(&memory, true));
    let (holder, guest) = Holder::new(folder)?;
    arguments.extend(["-plugin".into(), Holder::plugin(&crate::find_observer()?, &guest)]);
    let log = folder.join("qemu.log");
    let mut qemu = Running::start(&prepared.qemu, machine, &files, &arguments, Some(guest), &log)?;
    snapshot::restore(&mut qemu, base)?;
    if !wait_until_it_stops(&mut qemu, &files.control)? {
        return Ok(Made::Failed);
    }
    let time_jumped = snapshot::stop_exactly(&mut qemu, holder, &files.control)?;
    snapshot::save(&mut qemu, folder)?;
    qemu.quit(Duration::from_secs(5));
    for name in ["control", "qemu.log", "job", "share"] {
        fs::remove_file(folder.join(name)).ok();
    }
    // The kernel and what it says of itself are the first snapshot's.
    for name in ["kallsyms", "btf", "vdso", "modules", "hooks"] {
        fs::copy(base.folder.join(name), folder.join(name)).at("copy", &base.folder.join(name))?;
    }
    let mut facts = base.kernel.clone();
    facts.time_jumped |= time_jumped;
    let path = folder.join(FACTS);
    let file = File::create(&path).at("create", &path)?;
    serde_json::to_writer(file, &facts).map_err(std::io::Error::other).at("write", &path)?;
    Ok(Made::Ready { time_jumped })
}

/// Waits until the agent says that the guest stops. Returns false if the command failed, or QEMU ended.
fn wait_until_it_stops(qemu: &mut Running, control: &Path) -> Result<bool> {
    let start = Instant::now();
    let (mut control, mut messages) = (Tail::new(control), Lines::default());
    loop {
        let ended = qemu.ended();
        let mut stops = None;
        control.follow(|bytes| {
            messages.add(bytes, |line| match serde_json::from_slice(line) {
                Ok(Message::Stops { .. }) => stops = Some(true),
                Ok(Message::Accepted | Message::Started { .. }) => {}
                _ => stops = Some(false),
            });
        });
        if let Some(stops) = stops {
            return Ok(stops);
        }
        if ended.is_some() || start.elapsed() > PATIENCE {
            return Ok(false);
        }
        if kprism_signals::end_requested() {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(POLL);
    }
}
