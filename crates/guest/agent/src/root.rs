// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's root file system: found on a disk and entered, and its init started as process 1.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kprism_agent::content::{self, Content, I386, X86_64, machine, machine_name};
use kprism_agent::{CONTAINER_MARK, DISK_LINK, INIT_READY, OVERLAY, ROOT_FILE, RootPlan};

use crate::{boot, ports};

/// The disk's root while it is mounted below the initramfs.
const NEW: &str = "/.kprism/new";

/// Kernel modules of the initramfs.
const MODULES: &str = "/usr/lib/modules";

/// Maximum time for a disk to appear.
const DISK_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum time for an init to start everything.
const INIT_PATIENCE: Duration = Duration::from_secs(600);

/// Subvolumes of btrfs in which installers put a root file system, best first; the whole file system before them.
const SUBVOLUMES: [&str; 4] = ["", "subvol=root", "subvol=@", "subvol=@rootfs"];

/// Enters the root file system that the initramfs names, and starts its init. Returns the state that the init came to,
/// in the process that goes on as the agent. `None`: there is no such root, or no init in it.
///
/// # Errors
/// No disk has a root file system, or the init asked for is not in it.
pub fn set_up() -> io::Result<Option<String>> {
    let Ok(text) = fs::read(ROOT_FILE) else { return Ok(None) };
    let plan: RootPlan = serde_json::from_slice(&text).map_err(io::Error::other)?;
    let disks = disks(plan.disks)?;
    for (i, disk) in disks.iter().enumerate() {
        std::os::unix::fs::symlink(disk, format!("{DISK_LINK}{i}"))?;
    }
    if let (true, Some(disk)) = (plan.on_disk, disks.first()) {
        find_root(disk, &plan)?;
        enter(&plan)?;
        fs::create_dir_all("/root").ok();
        require_processor(&plan)?;
    }
    let init = match plan.init.as_deref() {
        Some("") => None,
        Some(named) if has(named) => Some(named),
        Some(named) => {
            return Err(io::Error::other(format!("the guest's root file system has no {named} to start")));
        }
        // A container image is not made to be booted, though one may have an init: Alpine's has.
        None if Path::new(CONTAINER_MARK).exists() => None,
        None => Some("/sbin/init").filter(|init| has(init)),
    };
    init.map(start).transpose()
}

/// Of the user's initrd with an `/init`, that it was not started, unless the user wants none.
pub fn unused_init() -> Option<String> {
    let text = fs::read(ROOT_FILE).ok()?;
    let plan: RootPlan = serde_json::from_slice(&text).ok()?;
    let is_unused = plan.tells_unused_init && has("/init");
    is_unused.then(|| "/init of the initrd was not started; `--init /init` starts it".to_owned())
}

/// Refuses a root file system for another processor: none of its programs could run.
///
/// # Errors
/// Names the program, and the processor.
fn require_processor(plan: &RootPlan) -> io::Result<()> {
    let init = plan.init.as_deref().filter(|init| !init.is_empty());
    for program in init.into_iter().chain(["/sbin/init", "/bin/sh", "/usr/bin/env"]) {
        let mut start = [0; 20];
        if File::open(program).and_then(|file| file.read_exact_at(&mut start, 0)).is_err() {
            continue;
        }
        return match machine(&start) {
            None => continue,
            Some(X86_64 | I386) => Ok(()),
            Some(other) => Err(io::Error::other(format!(
                "the root file system is for another processor: its {program} is for {}, and the guest is an x86-64",
                machine_name(other)
            ))),
        };
    }
    Ok(())
}

/// True if the program exists, maybe as a link to another.
fn has(program: &str) -> bool {
    fs::metadata(program).is_ok_and(|found| found.is_file())
}

/// Mounts the root file system of the disk at [`NEW`].
fn find_root(disk: &str, plan: &RootPlan) -> io::Result<()> {
    fs::create_dir_all(NEW)?;
    let mut tried = Vec::new();
    for device in devices(disk) {
        let path = format!("/dev/{device}");
        // For people by the disk's link: the kernel's name may be another disk's in QEMU's order.
        let device = device.replacen(disk, "disk0", 1);
        let kind = match kind_of(&path) {
            Ok(Content::FileSystem(kind)) => kind,
            Ok(other) => {
                tried.push(format!("{device}: {}", other.text()));
                continue;
            }
            Err(error) => {
                tried.push(format!("{device}: {error}"));
                continue;
            }
        };
        match mount_root(&path, kind, plan) {
            Ok(()) => return Ok(()),
            Err(why) => tried.push(format!("{device}: {kind}, {why}")),
        }
    }
    Err(io::Error::other(format!("no root file system on the disk:\n  {}", tried.join("\n  "))))
}

/// The kernel's names of the disks, in the order of QEMU's arguments, which is that of their addresses in memory.
fn disks(count: usize) -> io::Result<Vec<String>> {
    let start = Instant::now();
    let mut disks = Vec::new();
    for name in (0..count).map(|i| format!("pmem{i}")) {
        let folder = Path::new("/sys/class/block").join(&name);
        while !folder.exists() {
            if start.elapsed() > DISK_PATIENCE {
                return Err(io::Error::other(format!(
                    "the kernel shows no disk {name}: it needs CONFIG_ACPI_NFIT and CONFIG_BLK_DEV_PMEM"
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // The kernel looks for partitions after it shows the disk. Opening the disk waits for that.
        File::open(Path::new("/dev").join(&name))?;
        let text = fs::read_to_string(folder.join("device/resource"))?;
        let address =
            u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).map_err(io::Error::other)?;
        disks.push((address, name));
    }
    disks.sort_unstable();
    Ok(disks.into_iter().map(|(_, name)| name).collect())
}

/// The disk's partitions in order, or the disk itself if it has none.
fn devices(disk: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(Path::new("/sys/class/block").join(disk)) else { return Vec::new() };
    let mut partitions: Vec<(u32, String)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = fs::read_to_string(entry.path().join("partition")).ok()?.trim().parse().ok()?;
            Some((number, entry.file_name().into_string().ok()?))
        })
        .collect();
    partitions.sort_unstable();
    match partitions.is_empty() {
        true => vec![disk.to_owned()],
        false => partitions.into_iter().map(|(_, name)| name).collect(),
    }
}

/// Finds out by the first bytes, as blkid does.
fn kind_of(path: &str) -> io::Result<Content> {
    let device = File::open(path)?;
    Ok(content::of(|at, into| device.read_exact_at(into, at).is_ok()))
}

/// Mounts a device at [`NEW`], if it holds a root file system.
fn mount_root(path: &str, kind: &str, plan: &RootPlan) -> Result<(), String> {
    load_for(plan, kind)?;
    let subvolumes = if kind == "btrfs" { &SUBVOLUMES[..] } else { &SUBVOLUMES[..1] };
    let mut why = String::new();
    for options in subvolumes {
        match boot::mount(kind, path, NEW, 0, options) {
            Ok(()) if looks_like_a_root() => return Ok(()),
            Ok(()) => {
                why = "no root file system: it has no etc and usr".to_owned();
                unmount_new();
            }
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                return Err("which the kernel cannot mount".to_owned());
            }
            Err(_) if !options.is_empty() => {}
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// Loads the modules of a file system.
fn load_for(plan: &RootPlan, kind: &str) -> Result<(), String> {
    for (_, modules) in plan.filesystems.iter().filter(|(name, _)| name == kind) {
        for module in modules {
            boot::load_module(module).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn looks_like_a_root() -> bool {
    ["etc", "usr"].iter().all(|name| Path::new(NEW).join(name).is_dir())
}

fn unmount_new() {
    // SAFETY: the string ends in NUL.
    unsafe { libc::umount(c"/.kprism/new".as_ptr()) };
}

/// Makes [`NEW`] the root, with what is mounted already moved into it, and the initramfs's modules in their place.
fn enter(plan: &RootPlan) -> io::Result<()> {
    let fail = |what: &str, error: io::Error| io::Error::other(format!("{what}: {error}"));
    for place in ["/proc", "/sys", "/dev", "/run"] {
        let target = format!("{NEW}{place}");
        fs::create_dir_all(&target).map_err(|error| fail(&target, error))?;
        boot::mount("", place, &target, libc::MS_MOVE, "").map_err(|error| fail(place, error))?;
    }
    let has_modules = bind_modules(plan)?;
    std::env::set_current_dir(NEW)?;
    boot::mount("", ".", "/", libc::MS_MOVE, "").map_err(|error| fail("the new root", error))?;
    // SAFETY: the string ends in NUL.
    if unsafe { libc::chroot(c".".as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    std::env::set_current_dir("/")?;
    if has_modules {
        boot::depmod();
    }
    Ok(())
}

/// Shows the initramfs's modules in the new root. If that has modules of this very kernel, only those of the initramfs that it
/// has not are laid over them. Returns true if there are any.
fn bind_modules(plan: &RootPlan) -> io::Result<bool> {
    let Ok(mut releases) = fs::read_dir(MODULES) else { return Ok(false) };
    let Some(Ok(release)) = releases.next() else { return Ok(false) };
    let place = format!("{NEW}/lib/modules");
    let (ours, theirs) = (release.path(), Path::new(&place).join(release.file_name()));
    if theirs.join("modules.dep").exists() {
        // Without modules of the user's there are drivers only, which are loaded already.
        let are_wanted = plan.filesystems.iter().any(|(name, _)| name == OVERLAY);
        if !are_wanted || !has_more(&ours, &theirs)? {
            return Ok(false);
        }
        load_for(plan, OVERLAY).map_err(io::Error::other)?;
        let work = "/.kprism/overlay";
        fs::create_dir_all(work)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let options = format!("lowerdir={},upperdir={},workdir={work}", text(&theirs), text(&ours));
        boot::mount(OVERLAY, OVERLAY, &text(&theirs), 0, &options).map_err(|error| {
            io::Error::other(format!(
                "modules of yours beside the image's own, which are of the same kernel: the kernel needs \
                 CONFIG_OVERLAY_FS ({error})"
            ))
        })?;
        return Ok(true);
    }
    fs::create_dir_all(&place)?;
    boot::mount("", MODULES, &place, libc::MS_BIND, "")?;
    Ok(true)
}

/// True if a module of the folder is not in the other, packed or not.
fn has_more(ours: &Path, theirs: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(ours)? {
        let entry = entry?;
        let (path, other) = (entry.path(), theirs.join(entry.file_name()));
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_there =
            || ["", ".xz", ".zst", ".gz"].iter().any(|end| theirs.join(format!("{name}{end}")).exists());
        if path.is_dir() && has_more(&path, &other)? || name.ends_with(".ko") && !is_there() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes this process the init, and returns in a child of it, once the init has started everything, with its state.
fn start(init: &str) -> io::Result<String> {
    let program = CString::new(init).map_err(io::Error::other)?;
    // SAFETY: this process has one thread, so the child is a whole copy of it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: the string ends in NUL.
            unsafe { libc::prctl(libc::PR_SET_NAME, c"kprism-agent".as_ptr()) };
            guard()?;
            let state = wait_until_started(init);
            boot::mount_tracing();
            Ok(state)
        }
        _ => {
            ports::allow_ports(false)?;
            let arguments = [program.as_ptr(), std::ptr::null()];
            // SAFETY: strings and list end in NUL and live through the call.
            unsafe { libc::execv(program.as_ptr(), arguments.as_ptr()) };
            let error = io::Error::last_os_error();
            ports::allow_ports(true)?;
            Err(io::Error::other(format!("{init}: {error}")))
        }
    }
}

/// Goes on in a child, and waits for that here: beside an init the agent is a process that somebody may kill, and then nobody
/// would tell the host.
fn guard() -> io::Result<()> {
    // SAFETY: this process has one thread, so the child is a whole copy of it.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => return Ok(()),
        child => child,
    };
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    while unsafe { libc::waitpid(child, &mut status, 0) } == -1
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    Err(io::Error::other(format!("kprism's agent in the guest ended ({})", ExitStatus::from_raw(status))))
}

/// Waits for the init. systemd says when it has started everything; of another init the machine's rest tells.
fn wait_until_started(init: &str) -> String {
    let start = Instant::now();
    let is_systemd = fs::canonicalize(init).is_ok_and(|program| program.ends_with("systemd"));
    while is_systemd && !Path::new("/run/systemd/system").is_dir() && start.elapsed() < DISK_PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    boot::settle();
    if !Path::new("/run/systemd/system").is_dir() {
        return INIT_READY.to_owned();
    }
    loop {
        match systemctl(&["is-system-running"]).trim() {
            "running" => return INIT_READY.to_owned(),
            "degraded" => {
                let failed = systemctl(&["--failed", "--plain", "--no-legend"]);
                let units: Vec<&str> =
                    failed.lines().filter_map(|line| line.split_whitespace().next()).collect();
                return format!("degraded: {} failed", units.join(", "));
            }
            "maintenance" => return "maintenance: it asks for a password on its console".to_owned(),
            state if start.elapsed() > INIT_PATIENCE => return format!("{state} still"),
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn systemctl(arguments: &[&str]) -> String {
    let mut command = Command::new("systemctl");
    command.args(arguments).env("PATH", "/usr/bin:/bin").env("SYSTEMD_COLORS", "0");
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}
