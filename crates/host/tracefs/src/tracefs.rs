// SPDX-License-Identifier: MIT OR Apache-2.0
//! Access to tracefs: locates the mounted file system, checks that it may be used, and reads and writes its files. The
//! output of a failed access is an [`Error`] that names the cause, such as lockdown or missing permission.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::error::{Context as _, Error, Result};

/// Name of the tracer that this crate uses.
pub const FUNCTION_GRAPH: &str = "function_graph";

/// A mounted tracefs.
#[derive(Debug, Clone)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// Locates tracefs and checks that it may be written. Fails if it is missing, not mounted or not permitted.
    pub fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let place = mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, kind) = (words.next()?, words.next()?);
            (kind == "tracefs").then(|| PathBuf::from(place))
        });
        let Some(root) = place else {
            let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
            let built = known.lines().any(|line| line.ends_with("\ttracefs"));
            return Err(if built { Error::NotMounted } else { Error::NoTracefs });
        };
        let tracefs = Self { root };
        let probe = tracefs.path("tracing_on");
        match OpenOptions::new().write(true).open(&probe) {
            Ok(_) => Ok(tracefs),
            Err(error) => Err(refusal(&probe, error)),
        }
    }

    /// The tracefs mounted at `root`, without a check.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Folder at which tracefs is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Path of a file in tracefs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Contents of a file in tracefs.
    pub fn read(&self, name: &str) -> Result<String> {
        read(&self.path(name))
    }

    /// True if a folder (an instance, or empty for the top level) has the tracer.
    pub fn has_tracer(&self, folder: &str, tracer: &str) -> bool {
        let list = self.read(&join(folder, "available_tracers")).unwrap_or_default();
        list.split_whitespace().any(|word| word == tracer)
    }

    /// Name of the tracer that is on at the top level.
    pub fn current_tracer(&self) -> Result<String> {
        Ok(self.read("current_tracer")?.trim().to_owned())
    }

    /// Size of a ring buffer page, in bytes.
    pub fn page_bytes(&self, folder: &str) -> usize {
        let kib = self.read(&join(folder, "buffer_subbuf_size_kb")).ok();
        // Kernels before 6.8 support only the size of a memory page, which is up to 64 KiB on ARM.
        kib.and_then(|text| text.trim().parse::<usize>().ok()).map_or_else(memory_page, |kib| kib << 10)
    }

    /// Numbers of the CPUs that have a buffer.
    pub fn cpus(&self) -> Result<Vec<u32>> {
        let folder = self.path("per_cpu");
        let mut cpus = Vec::new();
        for entry in fs::read_dir(&folder).at("read", &folder)? {
            let name = entry.at("read", &folder)?.file_name();
            cpus.extend(name.to_str().and_then(|name| name.strip_prefix("cpu")?.parse::<u32>().ok()));
        }
        cpus.sort_unstable();
        Ok(cpus)
    }
}

/// Path of a name below a folder. The folder may be empty.
pub fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Reads a file of a special file system as text; invalid UTF-8 is replaced.
pub fn read(path: &Path) -> Result<String> {
    match read_bytes(path) {
        Ok(bytes) => Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())),
        Err(error) => Err(refusal(path, error)),
    }
}

/// Reads a file in large steps. Some files return everything that fits the first read, and nothing to later ones.
pub fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let mut step = vec![0; 1 << 16];
    let mut bytes = Vec::new();
    loop {
        match file.read(&mut step) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(&step[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Empties the file and writes each value by itself, because tracefs takes one value per write.
pub fn write(path: &Path, values: &[&str]) -> Result<()> {
    let open = OpenOptions::new().write(true).truncate(true).open(path);
    let mut file = open.map_err(|error| refusal(path, error))?;
    for value in values {
        // The newline ends a word; without it the kernel waits for the rest of the word.
        file.write_all(format!("{value}\n").as_bytes()).at("write", path)?;
    }
    Ok(())
}

fn refusal(path: &Path, error: std::io::Error) -> Error {
    if !matches!(error.kind(), ErrorKind::PermissionDenied) {
        return Error::Io { what: "open", path: path.to_owned(), source: error };
    }
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } == 0 {
        let state = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
        let chosen = bracketed(&state).unwrap_or("none");
        if chosen != "none" {
            return Error::LockedDown { state: chosen.to_owned() };
        }
    }
    Error::NotRoot { path: path.to_owned() }
}

/// The chosen word in a text such as `[this] that other`.
pub fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

/// Size of a memory page, in bytes.
fn memory_page() -> usize {
    // SAFETY: it takes a number and gives one.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
