// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots of a guest that has booted and waits for a command: each kind of guest is booted only once.
//!
//! The guest's memory is a file of its own, which QEMU maps: a run reads only the pages that it touches, and what it writes stays
//! its own (copy on write). `state` holds the rest of the machine. Beside them the entry holds the kernel's own data: `kallsyms`, `btf`, `vdso`, `modules`, and the observer's
//! `hooks` made from them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kprism_agent::{Message, Region};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::cache::{Cache, Key};
use crate::disk::{self, Image};
use crate::error::{Context, Error, Result};
use crate::hold::Holder;
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::options::{Progress, Report};
use crate::qemu::{Machine, PortFiles, Qemu, Running};
use crate::stop_time;
use crate::tail::{Lines, Tail, find_panic, last_lines};

/// Number of snapshots in the cache. Each has 200 MB and more.
const KEPT: usize = 8;

/// Number of times after which a snapshot is taken even if guest time jumped. Then the environment of its runs says so.
pub(crate) const BOOTS: u32 = 4;

/// A saved guest in the cache.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The entry's folder.
    pub folder: PathBuf,
    /// Facts about the kernel.
    pub kernel: KernelFacts,
}

/// Facts reported by the guest's kernel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelFacts {
    /// `uname -r`.
    pub release: String,
    /// GNU build ID, lower-case hex; may be empty.
    pub build_id: String,
    /// State of the guest's own init, if the root file system has one: [`kprism_agent::INIT_READY`], or what is wrong.
    #[serde(default)]
    pub init: Option<String>,
    /// True if guest time jumped while the snapshot was made: runs from it are not those from another snapshot of this guest.
    #[serde(default)]
    pub time_jumped: bool,
}

impl Snapshot {
    /// Finds the snapshot in the cache, and boots the guest to make it if needed.
    pub(crate) fn find(boot: &Boot<'_>, cache: &Cache, limit: Duration, report: Report<'_>) -> Result<Self> {
        let disks_mib: u64 = boot.images.iter().map(|image| disk::space_mib(&image.raw) * 5 / 4).sum();
        let need_mib = boot.machine.mem_mib / 8 + 300 + disks_mib;
        let place = cache.entry("snapshot", &boot.key(), need_mib, |folder| {
            for _ in 1..BOOTS {
                if !make(boot, folder, limit, report)? {
                    return Ok(());
                }
                report(Progress::Step("guest time jumped while the guest was saved: booting it again"));
                crate::cache::remove(folder)?;
                fs::create_dir(folder).at("create", folder)?;
            }
            make(boot, folder, limit, report).map(drop)
        })?;
        cache.keep_recent("snapshot", &place, KEPT);
        Self::read(place)
    }

    /// The snapshot in an entry of the cache.
    pub(crate) fn read(place: PathBuf) -> Result<Self> {
        let path = place.join(FACTS);
        let facts = fs::read(&path).at("read", &path)?;
        let kernel = serde_json::from_slice(&facts).map_err(|error| Error::BadFile {
            path: path.clone(),
            reason: format!("{error}; delete {} and try again", place.display()),
        })?;
        Ok(Self { folder: place, kernel })
    }

    /// QEMU's arguments for the guest's memory, which the run does not change.
    ///
    /// # Errors
    /// The file is not whole.
    pub(crate) fn memory_arguments(&self, machine: &Machine) -> Result<Vec<OsString>> {
        self.require_memory(machine)?;
        Ok(machine.memory_arguments(&self.folder.join(MEMORY), false))
    }

    /// Refuses a snapshot whose memory is not whole. QEMU would make a file that is too short longer.
    ///
    /// # Errors
    /// [`Error::BadFile`].
    pub(crate) fn require_memory(&self, machine: &Machine) -> Result<()> {
        let path = self.folder.join(MEMORY);
        let length = fs::metadata(&path).at("read", &path)?.len();
        if length != machine.mem_mib << 20 {
            return Err(Error::BadFile {
                path,
                reason: format!(
                    "it has {length} bytes, and not the {} MiB of the guest's memory; delete {} and try again",
                    machine.mem_mib,
                    self.folder.display()
                ),
            });
        }
        Ok(())
    }

    /// The images of `count` disks as they were when the state was saved.
    pub(crate) fn disks(&self, count: usize) -> Vec<PathBuf> {
        disks(&self.folder, count)
    }
}

/// File with the guest's memory.
pub(crate) const MEMORY: &str = "memory";

/// File with the [`KernelFacts`].
pub(crate) const FACTS: &str = "kernel.json";

/// File with the state of the machine's devices and CPUs, for QEMU.
const STATE: &str = "state";

/// Names of disks in a folder.
pub(crate) fn disks(folder: &Path, count: usize) -> Vec<PathBuf> {
    (0..count).map(|i| folder.join(format!("disk{i}"))).collect()
}

/// All inputs of a boot.
#[derive(Debug, Clone)]
pub(crate) struct Boot<'a> {
    pub qemu: &'a Qemu,
    pub machine: &'a Machine,
    pub kernel: &'a Kernel,
    pub initramfs: &'a Initramfs,
    pub images: &'a [Image],
    pub command_line: String,
}

impl Boot<'_> {
    fn key(&self) -> String {
        Key::default()
            .add("layout 6")
            .add(&self.qemu.version)
            .add(self.machine.arguments().join(" "))
            .add(&self.kernel.key)
            .add(&self.initramfs.key)
            .add(&self.command_line)
            .add(self.images.iter().map(|image| image.key.as_str()).collect::<String>())
            .finish()
    }

    /// QEMU's arguments for the boot.
    pub fn arguments(&self) -> Vec<OsString> {
        vec![
            "-kernel".into(),
            self.kernel.image.clone().into(),
            "-initrd".into(),
            self.initramfs.image.clone().into(),
            "-append".into(),
            self.command_line.clone().into(),
        ]
    }
}

/// Boots the guest and saves it in `folder`. Returns true if guest time jumped meanwhile.
fn make(boot: &Boot<'_>, folder: &Path, limit: Duration, report: Report<'_>) -> Result<bool> {
    report(Progress::Step("booting the guest, once for this kind of guest"));
    let files = PortFiles {
        console: folder.join("console.log"),
        control: folder.join("control"),
        stdout: "/dev/null".into(),
        stderr: "/dev/null".into(),
    };
    let disks = disks(folder, boot.images.len());
    for (image, disk) in boot.images.iter().zip(&disks) {
        disk::copy(&image.raw, disk)?;
    }
    let mut arguments = boot.arguments();
    let memory = folder.join(MEMORY);
    let file =
        File::options().write(true).create_new(true).mode(0o600).open(&memory).at("create", &memory)?;
    file.set_len(boot.machine.mem_mib << 20).at("write", &memory)?;
    arguments.extend(boot.machine.memory_arguments(&memory, true));
    arguments.extend(boot.machine.disk_arguments(&disks, true));
    arguments.extend(boot.machine.network_arguments(&[]));
    // Where guest time is the host's, no two snapshots are the same anyway.
    let held = boot.machine.has_exact_time().then(|| Holder::new(folder)).transpose()?;
    let (holder, guest) = held.unzip();
    if let Some(guest) = &guest {
        arguments.extend(["-plugin".into(), Holder::plugin(&crate::find_observer()?, guest)]);
    }
    let mut qemu =
        Running::start(boot.qemu, boot.machine, &files, &arguments, guest, &folder.join("qemu.log"))?;
    let init = wait_ready(&mut qemu, &files, limit, report)?;
    let console = fs::read(&files.console).unwrap_or_default();
    if String::from_utf8_lossy(&console).contains(NO_ROOM) {
        // The kernel goes on with the files that it has unpacked until then.
        return Err(Error::Boot {
            reason: "the guest's memory is too small for its files: give it more with --mem".into(),
            console: last_lines(&files.console, 15),
        });
    }
    report(Progress::Step("saving the guest"));
    // It stops always at the same instruction. So the snapshot does not depend on the host's time.
    let time_jumped = match holder {
        Some(holder) => stop_exactly(&mut qemu, holder, &files.control)?,
        None => {
            wait_stopped(&mut qemu)?;
            false
        }
    };
    let (Some(Message::Ready { release, kallsyms, btf, vdso, modules, build_id }), _) = told(&files.control)?
    else {
        return Err(Error::Qemu { reason: "the guest's agent spoke out of turn".into() });
    };
    let read = |qemu: &mut Running, region: Option<Region>| -> Result<Vec<u8>> {
        let mut contents = Vec::new();
        read_region(qemu, &region.unwrap_or_default(), folder, &mut contents)?;
        Ok(contents)
    };
    let kallsyms = read(&mut qemu, kallsyms)?;
    let btf = read(&mut qemu, btf)?;
    let vdso = read(&mut qemu, vdso)?;
    let facts = serde_json::to_vec(&KernelFacts { release, build_id, init, time_jumped });
    let facts = facts.map_err(std::io::Error::other);
    let hooks = crate::hooks::make(&kallsyms, &btf)?;
    for (name, contents) in [
        ("kallsyms", kallsyms),
        ("btf", btf),
        ("vdso", vdso),
        ("modules", modules.into_bytes()),
        (FACTS, facts.at("write", folder)?),
        ("hooks", hooks.into_bytes()),
    ] {
        let path = folder.join(name);
        fs::write(&path, contents).at("write", &path)?;
    }
    save(&mut qemu, folder)?;
    qemu.quit(Duration::from_secs(5));
    for name in ["control", "qemu.log"] {
        fs::remove_file(folder.join(name)).ok();
    }
    Ok(time_jumped)
}

/// Stops a guest whose agent has announced its stop in `control`. Returns true if guest time jumped meanwhile.
pub(crate) fn stop_exactly(qemu: &mut Running, mut holder: Holder, control: &Path) -> Result<bool> {
    holder.stop(qemu)?;
    let is_at_the_mark = wait_status(qemu, "running", &["paused", STOPPED_ITSELF])? == "paused";
    let (_, stops) = told(control)?;
    Ok(!is_at_the_mark || stop_time::jumped(&mut qemu.qmp, stops)?)
}

/// Messages of the agent: the last [`Message::Ready`], if there is one, and the guest's time right before it stopped.
fn told(control: &Path) -> Result<(Option<Message>, u64)> {
    let said = fs::read(control).at("read", control)?;
    let (mut ready, mut stops) = (None, None);
    for line in said.split(|&byte| byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Message::Stops { at_ns }) => stops = Some(at_ns),
            Ok(message @ Message::Ready { .. }) => ready = Some(message),
            _ => {}
        }
    }
    let stops =
        stops.ok_or_else(|| Error::Qemu { reason: "the guest stopped without its agent's word".into() })?;
    Ok((ready, stops))
}

/// Waits for the agent's message that is to be `Ready`. Returns the state of an init, which may come before it.
fn wait_ready(
    qemu: &mut Running,
    files: &PortFiles,
    limit: Duration,
    report: Report<'_>,
) -> Result<Option<String>> {
    let start = Instant::now();
    let (mut control, mut console) = (Tail::new(&files.control), Tail::new(&files.console));
    let (mut messages, mut lines) = (Lines::default(), Lines::default());
    let mut init = None;
    let failed = |reason: String| {
        let console = last_lines(&files.console, 15);
        let reason = match remedy(&files.console) {
            Some(remedy) => format!("{reason}\n{remedy}"),
            None => reason,
        };
        Error::Boot { reason, console }
    };
    loop {
        let ended = qemu.ended();
        let mut message = None;
        control.follow(|bytes| {
            messages.add(bytes, |line| match serde_json::from_slice(line) {
                Ok(Message::Init { state }) => init = Some(state),
                // It follows `Ready`. Both are read when the guest has stopped.
                Ok(Message::Stops { .. }) => {}
                other => message = Some(other),
            });
        });
        console.follow(|bytes| {
            lines.add(bytes, |line| report(Progress::Console(&String::from_utf8_lossy(line))))
        });
        match message {
            Some(Ok(Message::Failed { what })) => return Err(failed(what)),
            Some(Ok(Message::Ready { .. })) => return Ok(init),
            Some(Ok(_)) => return Err(Error::Qemu { reason: "the guest's agent spoke out of turn".into() }),
            Some(Err(error)) => return Err(failed(format!("its agent sent nonsense: {error}"))),
            None => {}
        }
        if let Some(status) = ended {
            if let Some(panic) = find_panic(&files.console) {
                return Err(failed(panic));
            }
            if status.success() {
                // By -no-reboot a restart ends QEMU too.
                return Err(failed(
                    "the guest powered off or restarted before it was ready for a command".into(),
                ));
            }
            return Err(failed(format!("QEMU ended ({status}) {}", qemu.stderr_text()).trim().to_owned()));
        }
        if start.elapsed() > limit {
            return Err(failed(format!(
                "not ready after {} s: --boot-timeout gives it longer, if it is only slow",
                limit.as_secs()
            )));
        }
        if kprism_signals::end_requested() {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel's words for an initramfs that it has no room to unpack.
const NO_ROOM: &str = "Initramfs unpacking failed: write error";

/// Signs on the console of a kernel that lacks something, or has no room, with what helps.
const SIGNS: [(&str, &str); 5] = [
    (
        "Unable to mount root fs",
        "the kernel found no initramfs: it was built without CONFIG_BLK_DEV_INITRD, or the guest's memory is too small \
         for it (--mem)",
    ),
    (
        "No working init found",
        "the kernel cannot run the agent: it was built without CONFIG_BINFMT_ELF, or without CONFIG_BLK_DEV_INITRD",
    ),
    ("Failed to execute /init (error -8)", "the kernel was built without CONFIG_BINFMT_ELF or CONFIG_64BIT"),
    (NO_ROOM, "the guest's memory is too small for its files: give it more with --mem"),
    ("System is deadlocked on memory", "the guest's memory is too small: give it more with --mem"),
];

/// The remedy for a guest that did not come up, if its console has a sign of the cause, or is silent.
fn remedy(console: &Path) -> Option<&'static str> {
    let bytes = fs::read(console).unwrap_or_default();
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Some(
            "its console is silent: the kernel does not start, or was built without CONFIG_SERIAL_8250_CONSOLE (with \
             CONFIG_TTY and CONFIG_PRINTK), by which it would say why",
        );
    }
    let text = String::from_utf8_lossy(&bytes);
    SIGNS.iter().find(|(sign, _)| text.contains(sign)).map(|(_, remedy)| *remedy)
}

/// Copies a range of the stopped guest's memory to `output`, through a file in `folder`.
pub(crate) fn read_region(
    qemu: &mut Running,
    region: &Region,
    folder: &Path,
    output: &mut impl Write,
) -> Result<()> {
    let piece = folder.join("piece");
    for &(address, length) in &region.runs {
        let filename = piece.to_string_lossy();
        qemu.qmp.call("pmemsave", json!({ "val": address, "size": length, "filename": filename }))?;
        let contents = fs::read(&piece).at("read", &piece)?;
        output.write_all(&contents).at("write", folder)?;
    }
    fs::remove_file(&piece).ok();
    Ok(())
}

/// Writes the state of the stopped machine. Its memory is a file already.
pub(crate) fn save(qemu: &mut Running, folder: &Path) -> Result<()> {
    leave_files_out(qemu)?;
    let state = folder.join(STATE);
    qemu.qmp.call("migrate", json!({ "uri": format!("file:{}", state.display()) }))?;
    loop {
        let said = qemu.qmp.call("query-migrate", json!({}))?;
        let text =
            |name: &str| said.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        match text("status").as_str() {
            "completed" => break,
            "failed" | "cancelled" => {
                let reason = text("error-desc");
                if reason.contains("No space left") {
                    return Err(Error::NoSpace { path: state, need_mib: 600 });
                }
                return Err(Error::Qemu { reason: format!("saving the guest: {reason}") });
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    // After a power cut no incomplete file may have its final name.
    for path in [state, folder.join(MEMORY)] {
        let file = File::options().append(true).open(&path).at("open", &path)?;
        file.sync_data().at("write", &path)?;
    }
    Ok(())
}

/// Makes QEMU leave memory and disks out of the state: they are files already.
fn leave_files_out(qemu: &mut Running) -> Result<()> {
    let on = json!({ "capability": "x-ignore-shared", "state": true });
    qemu.qmp.call("migrate-set-capabilities", json!({ "capabilities": [on] })).map(|_| ())
}

/// Loads the state into a QEMU started with `-incoming defer -S`, and starts it.
pub(crate) fn restore(qemu: &mut Running, snapshot: &Snapshot) -> Result<()> {
    leave_files_out(qemu)?;
    // QEMU would announce the machine to a network, with timers in host time. Close to such a timer it shortens the
    // CPUs' turns, which a guest with several CPUs could notice.
    qemu.qmp.call("migrate-set-parameters", json!({ "announce-rounds": 0 }))?;
    let state = snapshot.folder.join(STATE);
    qemu.qmp.call("migrate-incoming", json!({ "uri": format!("file:{}", state.display()) }))?;
    wait_status(qemu, "inmigrate", &["paused", STOPPED_ITSELF])?;
    qemu.qmp.call("cont", json!({})).map(|_| ())
}

/// Waits until the guest has stopped itself.
pub(crate) fn wait_stopped(qemu: &mut Running) -> Result<()> {
    qemu.qmp.wait_stopped()?;
    wait_status(qemu, "running", &[STOPPED_ITSELF]).map(drop)
}

/// QEMU's name for a guest that stopped itself.
const STOPPED_ITSELF: &str = "guest-panicked";

/// Waits until the machine's state changes from `from` to one of `to`, which is returned.
fn wait_status(qemu: &mut Running, from: &str, to: &[&str]) -> Result<String> {
    loop {
        let state = qemu.qmp.call("query-status", json!({}))?;
        match state.get("status").and_then(|status| status.as_str()).unwrap_or("unknown") {
            status if to.contains(&status) => return Ok(status.to_owned()),
            status if status == from => std::thread::sleep(Duration::from_millis(1)),
            status => return Err(Error::Qemu { reason: format!("the guest is in the state `{status}`") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_tells_what_is_missing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let said = |text: &str| {
            fs::write(file.path(), text).unwrap();
            remedy(file.path()).unwrap_or_default()
        };
        assert!(said("\r\n").contains("CONFIG_SERIAL_8250_CONSOLE"));
        let panic =
            "[1.0] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\r\n";
        assert!(said(panic).contains("CONFIG_BLK_DEV_INITRD"));
        assert_eq!(said("[0.0] Linux version"), "");
    }
}
