// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the guest: file systems, modules, random numbers.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kprism_agent::{DEPMOD_WANTED, MODULE_LIST, OPTIONAL_MODULE};

/// A file system to mount: (type, place, options, needed).
type Mount = (&'static str, &'static str, &'static str, bool);

/// File systems that commands expect.
const MOUNTS: [Mount; 9] = [
    ("proc", "/proc", "", true),
    ("sysfs", "/sys", "", true),
    ("devtmpfs", "/dev", "", true),
    ("tmpfs", "/tmp", "mode=1777", true),
    ("tmpfs", "/run", "mode=755", true),
    ("devpts", "/dev/pts", "", false),
    ("tmpfs", "/dev/shm", "mode=1777", false),
    ("debugfs", "/sys/kernel/debug", "", false),
    ("tracefs", "/sys/kernel/tracing", "", false),
];

/// Those among them that the agent itself reads, and an init may not have mounted.
const TRACING: [Mount; 2] = [MOUNTS[7], MOUNTS[8]];

/// Mounts the file systems that commands expect.
pub fn mount_all() -> io::Result<()> {
    mount_each(&MOUNTS)?;
    for (link, target) in [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")]
    {
        std::os::unix::fs::symlink(target, Path::new("/dev").join(link)).ok();
    }
    Ok(())
}

/// Mounts the file systems with the kernel's traces and counters, if an init has not.
pub fn mount_tracing() {
    let mounted = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let missing: Vec<Mount> = TRACING
        .into_iter()
        .filter(|(_, place, ..)| !mounted.lines().any(|line| line.split(' ').nth(1) == Some(place)))
        .collect();
    // None of them is needed.
    mount_each(&missing).ok();
}

fn mount_each(mounts: &[Mount]) -> io::Result<()> {
    for &(kind, place, options, needed) in mounts {
        let result = fs::create_dir_all(place).and_then(|()| mount(kind, kind, place, 0, options));
        match result {
            // A kernel may have mounted /dev itself.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            // ENODEV: the kernel has no such file system (mount(2)).
            Err(error) if needed && error.raw_os_error() == Some(libc::ENODEV) => {
                let option = match kind {
                    "proc" => "PROC_FS",
                    "sysfs" => "SYSFS",
                    "devtmpfs" => "DEVTMPFS",
                    _ => "TMPFS",
                };
                return Err(io::Error::other(format!(
                    "the kernel was built without CONFIG_{option}, for {place}"
                )));
            }
            Err(error) if needed => return Err(io::Error::other(format!("mount {place}: {error}"))),
            _ => {}
        }
    }
    Ok(())
}

/// mount(2).
pub fn mount(kind: &str, source: &str, place: &str, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let text = |text: &str| CString::new(text).map_err(io::Error::other);
    let (kind, source, place, options) = (text(kind)?, text(source)?, text(place)?, text(options)?);
    // SAFETY: all four strings end in NUL and outlive the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), place.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Loads the modules that the initramfs lists. A module that is already loaded is no error. An optional one that the
/// kernel refuses gives one line on the console.
pub fn load_modules() -> io::Result<()> {
    if Path::new(DEPMOD_WANTED).exists() {
        depmod();
    }
    let Ok(list) = fs::read_to_string(MODULE_LIST) else { return Ok(()) };
    list.lines().filter(|line| !line.is_empty()).try_for_each(|line| load_listed(line, c""))
}

/// Loads the module of a line of the list, with these parameters.
pub fn load_listed(line: &str, parameters: &CStr) -> io::Result<()> {
    let Some(path) = line.strip_prefix(OPTIONAL_MODULE) else { return load_with(line, parameters) };
    if let Err(error) = load_with(path, parameters) {
        fs::write("/dev/kmsg", format!("kprism: optional module not loaded: {error}\n")).ok();
    }
    Ok(())
}

/// Makes modules known to `modprobe`. Without kmod in the guest, insmod's full paths still work.
pub fn depmod() {
    Command::new("/usr/sbin/depmod").arg("-a").stderr(Stdio::null()).status().ok();
}

/// Loads a module. One that is loaded already is no error.
pub fn load_module(path: &str) -> io::Result<()> {
    load_with(path, c"")
}

fn load_with(path: &str, parameters: &CStr) -> io::Result<()> {
    let file = File::open(path).map_err(|error| io::Error::other(format!("{path}: {error}")))?;
    // SAFETY: the parameters end in NUL; the kernel checks everything else.
    let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), 0) };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        error => Err(io::Error::other(format!("loading {path}: {error}"))),
    }
}

/// Initialises the kernel's random numbers. The guest has no hardware source for them. Without this, the first program
/// that asks would spin for a second while the kernel gathers jitter. The lab keeps no secrets, and wants the same
/// numbers every time.
pub fn seed_random() {
    /// `struct rand_pool_info` of include/uapi/linux/random.h.
    #[repr(C)]
    struct PoolInfo {
        entropy_bits: libc::c_int,
        bytes: libc::c_int,
        buffer: [u8; 64],
    }
    const RNDADDENTROPY: libc::c_ulong = 0x4008_5203;
    let Ok(device) = File::open("/dev/urandom") else { return };
    let info = PoolInfo {
        entropy_bits: 512,
        bytes: 64,
        buffer: *b"kprism runs are the same every time, random numbers and all!1234",
    };
    // SAFETY: the structure is what the call reads, and lives through it.
    unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY, &info) };
}

/// Returns true if any BPF program is loaded.
pub fn has_bpf_programs() -> bool {
    const BPF_PROG_GET_NEXT_ID: libc::c_int = 11;
    // The part of union bpf_attr that the command reads: start_id, next_id, open_flags.
    let mut attributes = [0u32; 3];
    // SAFETY: the attributes live through the call and are as long as is said.
    unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_GET_NEXT_ID, attributes.as_mut_ptr(), size_of_val(&attributes))
            == 0
    }
}

/// Returns true if a tracer has put its own code into the kernel: ftrace's trampolines, or the copied instructions of
/// kprobes. They have names in kallsyms while they exist. If `own`, ftrace's are those of a recorder of kprism, and not counted.
pub fn is_traced(own: bool) -> bool {
    let lists = ["/sys/kernel/tracing/enabled_functions", "/sys/kernel/debug/kprobes/list"];
    lists.iter().skip(usize::from(own)).any(|path| {
        let mut first = [0];
        File::open(path).and_then(|mut file| file.read(&mut first)).is_ok_and(|count| count > 0)
    })
}

/// The kernel's GNU build ID from `/sys/kernel/notes`, lower-case hex; empty if there is none. Elsewhere this is
/// `kprism_image::BuildId`, which would bring a disassembler and demanglers into this small program.
pub fn build_id() -> String {
    let notes = fs::read("/sys/kernel/notes").unwrap_or_default();
    let mut at = 0;
    while let Some(header) = notes.get(at..at + 12) {
        let field =
            |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]) as usize;
        let (name_size, size, kind) = (field(0), field(4), field(8));
        let name = at + 12;
        let contents = name + name_size.next_multiple_of(4);
        let (Some(name), Some(bytes)) =
            (notes.get(name..name + name_size), notes.get(contents..contents + size))
        else {
            break;
        };
        if kind == 3 && name == b"GNU\0" {
            return bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        }
        at = contents + size.next_multiple_of(4);
    }
    String::new()
}

/// The vDSO, from this process's own memory.
pub fn vdso() -> io::Result<Vec<u8>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let (start, end) = (maps.lines())
        .filter(|line| line.ends_with("[vdso]"))
        .find_map(|line| line.split(' ').next()?.split_once('-'))
        .ok_or(io::ErrorKind::NotFound)?;
    let number = |digits| u64::from_str_radix(digits, 16).map_err(io::Error::other);
    let (start, end) = (number(start)?, number(end)?);
    let mut contents = vec![0; end.saturating_sub(start) as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut contents, start)?;
    Ok(contents)
}

/// Waits until the kernel's own start-up work is over (self-tests of crypto algorithms run for seconds), so that no run
/// begins during it: until the CPUs are less than 2 % busy for half a second, or for at most half a minute.
pub fn settle() {
    const ROUND: Duration = Duration::from_millis(500);
    let mut last = idle_and_total();
    for _ in 0..60 {
        std::thread::sleep(ROUND);
        let now = idle_and_total();
        let (idle, total) = (now.0.saturating_sub(last.0), now.1.saturating_sub(last.1));
        if total > 0 && (total - idle.min(total)) * 50 < total {
            return;
        }
        last = now;
    }
}

/// Idle ticks and all ticks since boot, from the first line of `/proc/stat`.
fn idle_and_total() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> =
        stat.lines().next().unwrap_or("").split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal. The guest times after these are included in user.
    (ticks.get(3).copied().unwrap_or(0), ticks.iter().take(8).sum())
}
