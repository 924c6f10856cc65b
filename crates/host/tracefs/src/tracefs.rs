// SPDX-License-Identifier: MIT OR Apache-2.0
//! tracefs: where it is, whether it may be used, its files.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use crate::error::{Context as _, Error, Result};

/// The tracer this crate is about.
pub const FUNCTION_GRAPH: &str = "function_graph";

/// The mounted file system.
#[derive(Debug, Clone)]
pub struct Tracefs {
    root: PathBuf,
}

impl Tracefs {
    /// Finds it, and sees that it may be used.
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

    /// The one at `root`, as it was found before.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A file's contents.
    pub fn read(&self, name: &str) -> Result<String> {
        read(&self.path(name))
    }

    /// Whether a folder (an instance, or empty for the top) has the tracer.
    pub fn has_tracer(&self, folder: &str, tracer: &str) -> bool {
        let list = self.read(&join(folder, "available_tracers")).unwrap_or_default();
        list.split_whitespace().any(|word| word == tracer)
    }

    /// The tracer that is on at the top.
    pub fn current_tracer(&self) -> Result<String> {
        Ok(self.read("current_tracer")?.trim().to_owned())
    }

    /// Bytes in a page of the ring buffer.
    pub fn page_bytes(&self, folder: &str) -> usize {
        let kib = self.read(&join(folder, "buffer_subbuf_size_kb")).ok();
        // Kernels before 6.8 know no other size than a page.
        kib.and_then(|text| text.trim().parse::<usize>().ok()).map_or(4096, |kib| kib << 10)
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

/// A name below a folder, which may be empty.
pub fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") }
}

/// Reads a file of a special file system: whatever it gives, as text.
pub fn read(path: &Path) -> Result<String> {
    match read_bytes(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => Err(refusal(path, error)),
    }
}

/// Reads in large steps: some files give what fits the first one, and nothing to the next.
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

/// Empties the file and writes the values, each by itself: tracefs takes one value a write.
pub fn write(path: &Path, values: &[&str]) -> Result<()> {
    let open = OpenOptions::new().write(true).truncate(true).open(path);
    let mut file = open.map_err(|error| refusal(path, error))?;
    for value in values {
        // The blank ends a word; without one the kernel waits for more of it.
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

/// The chosen one in `[this] that other`.
pub fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}
