// SPDX-License-Identifier: MIT OR Apache-2.0
//! Configures the machine, starts QEMU, and makes sure that no QEMU is left behind. `qemu_find` finds QEMU.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kprism_agent::{CONTROL_PORT, EXIT_PORT, PAUSE_PORT, STDERR_PORT, STDOUT_PORT};

use crate::cpu::{self, CpuFeature};
use crate::error::{Context, Error, Result};
use crate::network::{Forward, Network};
use crate::options::Pace;
use crate::qmp::Qmp;

/// A suitable QEMU.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Its version line. A snapshot is valid for exactly this QEMU only.
    pub version: String,
}

/// The machine. It must be the same when a snapshot is made and when it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    pub smp: u32,
    pub mem_mib: u64,
    pub pace: Pace,
    /// Adds memory behind a CXL window, and writes every access to it to this file; see [`Machine::bus_monitor`].
    pub monitor: Option<PathBuf>,
    /// Sizes of its disks in bytes.
    pub disks: Vec<u64>,
    pub network: Network,
    /// Features that the user adds to its CPUs or removes from them.
    pub features: Vec<CpuFeature>,
}

/// Memory behind the CXL window: 65536 page tables of 4 KiB map 128 GiB.
const WINDOW_MIB: u64 = 256;

impl Machine {
    /// Includes only devices that act when the guest accesses them, unless the user asks for a network. A device with a
    /// thread or a queue in QEMU (virtio, disks, network) ends determinism.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> = ["-accel", "tcg"].map(str::to_owned).to_vec();
        let cpu = cpu::model(&self.features, self.monitor.is_some());
        arguments.extend(["-smp".into(), self.smp.to_string()]);
        let (mut machine, mut memory) = ("q35".to_owned(), format!("{}M", self.mem_mib));
        let (mut slots, mut more_mib) = (0, 0);
        if self.monitor.is_some() {
            machine.push_str(",cxl=on");
            (slots, more_mib) = (8, 16 * WINDOW_MIB);
        }
        if !self.disks.is_empty() {
            machine.push_str(",nvdimm=on");
            slots += self.disks.len();
            // QEMU places each at a multiple of a GiB.
            more_mib +=
                self.disks.iter().map(|bytes| (bytes >> 20).next_multiple_of(1024) + 1024).sum::<u64>();
        }
        if slots > 0 {
            memory.push_str(&format!(",maxmem={}M,slots={slots}", self.mem_mib + more_mib));
        }
        // Under a hypervisor Linux does not flush CPU caches, and then does not use a CXL region.
        let hypervisor = if self.monitor.is_some() { ",hypervisor=off" } else { "" };
        arguments.extend(["-machine".into(), machine, "-cpu".into(), format!("{cpu}{hypervisor}")]);
        arguments.extend(["-m".into(), memory]);
        match self.pace {
            Pace::Exact => {
                // Of an idle guest, time jumps to the next timer. With a network it must wait for what comes from there:
                // each timeout of the guest would be over before any answer.
                let idle = if self.network == Network::None { "off" } else { "on" };
                arguments.extend(["-icount".into(), format!("shift=0,sleep={idle}")]);
                arguments.extend(["-rtc", "base=2020-01-01,clock=vm", "-seed", "7"].map(str::to_owned));
            }
            Pace::Fast => {}
        }
        arguments.extend(["-nodefaults", "-no-user-config", "-display", "none"].map(str::to_owned));
        arguments.extend(["-no-reboot", "-action", "panic=pause", "-device"].map(str::to_owned));
        arguments.extend([format!("pvpanic,ioport={PAUSE_PORT}"), "-device".into()]);
        arguments.push(format!("isa-debug-exit,iobase={EXIT_PORT},iosize=1"));
        arguments.extend(self.network.device().into_iter().flat_map(|device| ["-device".into(), device]));
        arguments
    }

    /// True if guest time follows the instructions alone, and jumps to the next timer when the guest is idle.
    pub fn has_exact_time(&self) -> bool {
        self.pace == Pace::Exact && self.network == Network::None
    }

    /// Arguments for the network's other end, which is no part of a snapshot.
    pub fn network_arguments(&self, ports: &[Forward]) -> Vec<OsString> {
        let backend = self.network.backend(ports).into_iter();
        backend.flat_map(|backend| ["-netdev".into(), OsString::from(backend)]).collect()
    }

    /// Arguments for disks with these images: NVDIMMs, which the guest's own CPUs copy from and to. So a disk has no thread
    /// or queue in QEMU, and a run with disks is as reproducible as one without. If `shared`, what the guest writes goes
    /// to the images; otherwise it is lost when QEMU ends.
    pub fn disk_arguments(&self, images: &[PathBuf], shared: bool) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        for (i, (bytes, image)) in self.disks.iter().zip(images).enumerate() {
            let share = if shared { "on" } else { "off" };
            let start = format!("memory-backend-file,id=image{i},share={share},size={bytes},mem-path=");
            arguments.extend(["-object".into(), option(&start, image)]);
            arguments.extend(["-device".into(), format!("nvdimm,id=disk{i},memdev=image{i}").into()]);
        }
        arguments
    }

    /// Arguments for memory that is a file of this machine. If `shared`, what the guest writes goes to the file; otherwise a page
    /// is copied when the guest writes to it, and the copy is lost when QEMU ends.
    pub fn memory_arguments(&self, file: &Path, shared: bool) -> Vec<OsString> {
        let share = if shared { "on" } else { "off" };
        let start = format!("memory-backend-file,id=ram,size={}M,share={share},mem-path=", self.mem_mib);
        let machine = ["-machine", "memory-backend=ram"].map(OsString::from);
        ["-object".into(), option(&start, file)].into_iter().chain(machine).collect()
    }

    /// Arguments for a CXL memory device. QEMU handles its window like a device's registers, so every access, including
    /// the page table walker's, can be traced: a bus monitor.
    pub fn bus_monitor(&self) -> Vec<OsString> {
        let Some(trace) = &self.monitor else { return Vec::new() };
        let mut arguments: Vec<OsString> = Vec::new();
        arguments.push("-object".into());
        arguments.push(format!("memory-backend-ram,id=window,share=on,size={WINDOW_MIB}M").into());
        for device in [
            "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1",
            "cxl-rp,port=0,bus=cxl.1,id=rp,chassis=0,slot=2",
            "cxl-type3,bus=rp,volatile-memdev=window,id=cxl0",
        ] {
            arguments.extend(["-device", device].map(OsString::from));
        }
        // QEMU requires windows in multiples of 256 MiB.
        let window = format!("cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size={WINDOW_MIB}M");
        arguments.extend(["-machine".into(), window.into()]);
        for event in ["memory_region_ops_read", "memory_region_ops_write"] {
            arguments.extend(["-trace", event].map(OsString::from));
        }
        arguments.extend(["-msg", "timestamp=on", "-D"].map(OsString::from));
        arguments.push(trace.into());
        arguments
    }

    /// The kernel's command line.
    pub fn command_line(append: &[String]) -> String {
        // nokaslr: symbols are at the cached addresses, unless kaslr is requested. panic=-1: a panic ends QEMU at once,
        // by -no-reboot.
        let asked = append.iter().flat_map(|words| words.split_whitespace()).any(|word| word == "kaslr");
        let place = if asked { "" } else { "nokaslr " };
        let mut words = format!("console=ttyS0 {place}panic=-1 tsc=reliable");
        for word in append {
            words.push(' ');
            words.push_str(word);
        }
        words
    }
}

/// Files to which the guest's ports are written.
#[derive(Debug, Clone)]
pub(crate) struct PortFiles {
    pub console: PathBuf,
    pub control: PathBuf,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
}

impl PortFiles {
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        arguments.extend(["-chardev".into(), option("file,id=console,path=", &self.console)]);
        arguments.extend(["-serial".into(), "chardev:console".into()]);
        for (id, path, port) in [
            ("control", &self.control, CONTROL_PORT),
            ("stdout", &self.stdout, STDOUT_PORT),
            ("stderr", &self.stderr, STDERR_PORT),
        ] {
            arguments.extend(["-chardev".into(), option(&format!("file,id={id},path="), path)]);
            arguments.extend(["-device".into(), format!("isa-debugcon,iobase={port},chardev={id}").into()]);
        }
        arguments
    }
}

/// An option's value that ends in a path. QEMU requires commas to be doubled.
pub(crate) fn option(start: &str, path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut value = start.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        value.push(byte);
        if byte == b',' {
            value.push(b',');
        }
    }
    OsString::from_vec(value)
}

/// A running QEMU; killed on drop.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// Its control connection.
    pub qmp: Qmp,
    log: PathBuf,
}

impl Running {
    /// Starts QEMU, with its messages in the file `log`. QEMU gets the descriptor `inherited` under the same number.
    pub fn start(
        qemu: &Qemu,
        machine: &Machine,
        files: &PortFiles,
        more: &[OsString],
        inherited: Option<OwnedFd>,
        log: &Path,
    ) -> Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().at("connect to", &qemu.program)?;
        let theirs = OwnedFd::from(theirs);
        let descriptor = theirs.as_raw_fd();
        let mut command = Command::new(&qemu.program);
        command.args(machine.arguments()).args(machine.bus_monitor()).args(files.arguments()).args(more);
        // Otherwise the guest's way depends on this machine's load (the observer's `clock.rs`). A bus monitor's trace has the time of
        // each line, by the same functions of QEMU.
        if machine.has_exact_time() && machine.monitor.is_none() {
            let mut plugin = option("", &crate::find_observer()?);
            plugin.push(",clock=flushes");
            command.args(["-plugin".into(), plugin]);
        }
        command.args(["-chardev".to_owned(), format!("socket,id=qmp,fd={descriptor}")]);
        command.args(["-mon", "chardev=qmp,mode=control"]);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(log).at("write", log)?);
        // Ctrl-C in a terminal goes to the whole process group, but this crate ends QEMU itself.
        command.process_group(0);
        let parent = std::process::id();
        let passed = inherited.as_ref().map(AsRawFd::as_raw_fd);
        // SAFETY: the closure makes only async-signal-safe system calls.
        unsafe {
            command.pre_exec(move || {
                // QEMU dies when this process dies, in whatever way.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                libc::fcntl(descriptor, libc::F_SETFD, 0);
                if let Some(inherited) = passed {
                    libc::fcntl(inherited, libc::F_SETFD, 0);
                }
                Ok(())
            });
        }
        let child = command.spawn().at("run", &qemu.program)?;
        drop((theirs, inherited));
        let mut running = Self { child, qmp: Qmp::new(ours), log: log.to_owned() };
        if let Err(error) = running.qmp.handshake() {
            // Most likely QEMU refused its arguments. Its own message is better than this error.
            running.wait(Duration::from_secs(2));
            let said = running.stderr_text();
            return Err(Error::Qemu {
                reason: if said.is_empty() { error.to_string() } else { explained(said) },
            });
        }
        Ok(running)
    }

    /// QEMU's standard error.
    pub fn stderr_text(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
            .unwrap_or_default()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end, at most for `limit`.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let ended = self.ended();
            if ended.is_some() || start.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks QEMU to end, so that a plugin can write its data. Kills it if it has not ended within `patience`. Returns
    /// true if it ended by itself.
    pub fn quit(&mut self, patience: Duration) -> bool {
        self.qmp.send_quit();
        let gently = self.wait(patience).is_some();
        if !gently {
            self.kill();
        }
        gently
    }

    fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill();
        }
    }
}

/// QEMU's message; with the remedy, if its plugin interface is of a version that the observer does not fit.
fn explained(said: String) -> String {
    let more = if said.contains("requires API version") {
        "This kprism is for version 4 of QEMU's plugin interface (QEMU 9.2 to 11.0): use a newer kprism, or name another QEMU in \
         $KPRISM_QEMU"
    } else if said.contains("TCG doesn't support") || said.contains("can't apply global max-x86_64-cpu.") {
        "Leave the feature out of --cpu-features; `qemu-system-x86_64 -cpu help` lists those it knows, not all of which it emulates"
    } else {
        return said;
    };
    format!("{said}\n{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_paths_are_doubled() {
        assert_eq!(option("file,path=", Path::new("/a,b")), OsString::from("file,path=/a,,b"));
    }
}
