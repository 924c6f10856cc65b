// SPDX-License-Identifier: MIT OR Apache-2.0
//! Storage whose requests take time: a device of the kernel's own (null_blk) that keeps what is written in memory and completes
//! each request by a timer of the guest's clock, with ext4 on it.
//!
//! In: [`STORAGE_FILE`]. Out: the file system at [`STORAGE`], and folders of it at [`STORED`]. Journal, writeback and waits are the
//! kernel's own, and the same each time.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use kprism_agent::{STORAGE, STORAGE_FILE, STORED, StoragePlan};

use crate::boot;

/// Mount point of configfs (fs/configfs/mount.c).
const CONFIG: &str = "/sys/kernel/config";

/// Name of the device. Older kernels number it instead: `nullbN`.
const NAME: &str = "storage";

/// The device that the driver would make by itself is not wanted.
const NO_OTHERS: &std::ffi::CStr = c"nr_devices=0";

/// Values of null_blk's `queue_mode` and `irqmode` (drivers/block/null_blk/main.c): multi-queue, and completion by a timer.
const MULTI_QUEUE: &str = "2";
const BY_TIMER: &str = "2";

/// Identifies the file system, and seeds the hashes of its folders: the same each time.
const UUID: &str = "6b707269-736d-4000-8000-73746f726167";

/// Makes the storage that the initramfs asks for, if it does.
///
/// # Errors
/// The kernel lacks something for it; the text names the option.
pub fn set_up() -> io::Result<()> {
    let Ok(text) = fs::read(STORAGE_FILE) else { return Ok(()) };
    let plan: StoragePlan = serde_json::from_slice(&text).map_err(io::Error::other)?;
    for line in &plan.modules {
        let parameters = if line.contains("/null_blk.ko") { NO_OTHERS } else { c"" };
        boot::load_listed(line, parameters)?;
    }
    let device = make_device(&plan)?;
    make_file_system(&device)?;
    fs::create_dir_all(STORAGE)?;
    boot::mount("ext4", &device, STORAGE, 0, "").map_err(|error| lacks("EXT4_FS", "ext4", &error))?;
    STORED.iter().try_for_each(|place| move_to_storage(place))?;
    settle();
    Ok(())
}

/// Writes what a job brought to the device, if there is one: it would be written while the command runs.
pub fn settle() {
    if Path::new(STORAGE_FILE).exists() {
        // SAFETY: sync only writes back what the kernel holds.
        unsafe { libc::sync() };
    }
}

fn lacks(option: &str, what: &str, error: &io::Error) -> io::Error {
    io::Error::other(format!("storage with time: {what}: {error}; the kernel needs CONFIG_{option}"))
}

/// Configures the device and switches it on. Gives its path.
fn make_device(plan: &StoragePlan) -> io::Result<String> {
    match boot::mount("configfs", "configfs", CONFIG, 0, "") {
        Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
            return Err(lacks("CONFIGFS_FS", CONFIG, &error));
        }
        _ => {}
    }
    let folder = Path::new(CONFIG).join("nullb").join(NAME);
    fs::create_dir(&folder).map_err(|error| lacks("BLK_DEV_NULL_BLK", "null_blk", &error))?;
    let values = [
        ("size", plan.mib.to_string()),
        ("blocksize", "4096".to_owned()),
        ("memory_backed", "1".to_owned()),
        ("queue_mode", MULTI_QUEUE.to_owned()),
        ("submit_queues", "1".to_owned()),
        ("hw_queue_depth", plan.depth.to_string()),
        ("irqmode", BY_TIMER.to_owned()),
        ("completion_nsec", plan.request_ns.to_string()),
        ("power", "1".to_owned()),
    ];
    for (name, value) in values {
        fs::write(folder.join(name), value)
            .map_err(|error| io::Error::other(format!("storage with time: null_blk's {name}: {error}")))?;
    }
    let number = fs::read_to_string(folder.join("index"))?;
    let named = [NAME.to_owned(), format!("nullb{}", number.trim())];
    let device = named.into_iter().find(|name| Path::new("/sys/class/block").join(name).exists());
    let device = device.ok_or_else(|| io::Error::other("storage with time: null_blk made no device"))?;
    let queue = Path::new("/sys/class/block").join(&device).join("queue");
    let of_queue = |name: &str, value: &str| {
        fs::write(queue.join(name), value)
            .map_err(|error| io::Error::other(format!("storage with time: the queue's {name}: {error}")))
    };
    if plan.rotates {
        of_queue("rotational", "1")?;
    }
    // The kernel's own choice depends on its version (elevator_get_default in block/elevator.c).
    of_queue("scheduler", if plan.rotates { "mq-deadline" } else { "none" })?;
    Ok(format!("/dev/{device}"))
}

fn make_file_system(device: &str) -> io::Result<()> {
    // Nothing is left to be done in the background, which would be a part of what is recorded.
    let extended = format!("nodiscard,lazy_itable_init=0,lazy_journal_init=0,hash_seed={UUID}");
    let output = Command::new("/usr/sbin/mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-L", NAME, "-U", UUID, "-E", &extended, device])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::other(format!("storage with time: mkfs.ext4: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("storage with time: mkfs.ext4 {device}: {}", said.trim())))
}

/// Shows a folder of the storage, with what is in `place`, at that place.
fn move_to_storage(place: &str) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let mode = fs::metadata(place)?.permissions().mode() & 0o7777;
    let stored = format!("{STORAGE}{place}");
    fs::create_dir_all(&stored)?;
    let copied = Command::new("cp").args(["-a", &format!("{place}/."), &stored]).status()?;
    if !copied.success() {
        return Err(io::Error::other(format!("storage with time: {place} could not be copied ({copied})")));
    }
    fs::set_permissions(&stored, Permissions::from_mode(mode))?;
    boot::mount("", &stored, place, libc::MS_BIND, "")
}
