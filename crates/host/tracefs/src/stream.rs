// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies ring buffers to files. The input is each CPU's `trace_pipe_raw`, the output `cpuN.raw` in the run. There is
//! one thread per CPU; whole pages move by splice(2), which avoids copying them, and the rest of the last page by
//! read(2).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::error::{Context as _, Error, Result};
use crate::signals::{Bell, wait};

/// Size of the pipe between buffer and file, in bytes.
const PIPE_BYTES: usize = 1 << 20;

/// The threads that copy the buffers.
pub struct Streams {
    threads: Vec<(u32, JoinHandle<Result<u64>>)>,
    ended: Arc<AtomicBool>,
    stop: Bell,
}

/// Source and destination of one CPU's data.
struct Stream {
    raw: File,
    raw_path: PathBuf,
    output: File,
    output_path: PathBuf,
    page: usize,
    written: u64,
}

impl Streams {
    /// Starts copying the buffers of `cpus` below `folder` of tracefs to `output/cpuN.raw`. `trouble` rings when one of
    /// the threads fails.
    pub fn start(folder: &Path, cpus: &[u32], page: usize, output: &Path, trouble: &Bell) -> Result<Self> {
        let stop = Bell::new().at("wait for", folder)?;
        let mut streams = Self { threads: Vec::new(), ended: Arc::default(), stop };
        for &cpu in cpus {
            let stream = Stream::open(folder, cpu, page, output)?;
            let (stop, trouble, ended) = (streams.stop.clone(), trouble.clone(), streams.ended.clone());
            let thread = std::thread::Builder::new().name(format!("cpu{cpu}")).spawn(move || {
                let result = stream.run(&stop);
                if result.is_err() {
                    ended.store(true, Ordering::SeqCst);
                    trouble.ring();
                }
                result
            });
            streams.threads.push((cpu, thread.at("start a thread for", folder)?));
        }
        Ok(streams)
    }

    /// True if one of the threads failed.
    pub fn in_trouble(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Drains the buffers, which must not receive new events any more. Returns each CPU's size in bytes, and the first
    /// error.
    pub fn finish(mut self) -> (Vec<(u32, u64)>, Option<Error>) {
        self.stop.ring();
        let (mut bytes, mut trouble) = (Vec::new(), None);
        for (cpu, thread) in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(count)) => bytes.push((cpu, count)),
                Ok(Err(error)) => {
                    trouble.get_or_insert(error);
                }
                Err(_) => {
                    trouble.get_or_insert(Error::Setting(format!("the thread of CPU {cpu} panicked")));
                }
            }
        }
        (bytes, trouble)
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // Open files would prevent the removal of the instance.
        self.stop.ring();
        for (_, thread) in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

impl Stream {
    fn open(folder: &Path, cpu: u32, page: usize, output: &Path) -> Result<Self> {
        let raw_path = folder.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
        let open = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&raw_path);
        let raw = open.at("open", &raw_path)?;
        let output_path = output.join(format!("cpu{cpu}.raw"));
        let output = File::create(&output_path).at("create", &output_path)?;
        Ok(Self { raw, raw_path, output, output_path, page, written: 0 })
    }

    fn run(mut self, stop: &Bell) -> Result<u64> {
        let (from, to) = io::pipe().at("make a pipe for", &self.output_path)?;
        // SAFETY: only sets the size of our own pipe; if that fails, a smaller pipe works too.
        unsafe { libc::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_BYTES) };
        let mut stopping = false;
        loop {
            let mut moved = self.splice(from.as_raw_fd(), to.as_raw_fd())?;
            if stopping && !moved {
                moved = self.read_rest()?;
                if !moved {
                    return Ok(self.written);
                }
            }
            if moved {
                continue;
            }
            wait(&[self.raw.as_raw_fd(), stop.fd()], None);
            stopping = is_ringing(stop);
        }
    }

    /// Moves whole pages to the file. Returns true if there were any.
    fn splice(&mut self, from: RawFd, to: RawFd) -> Result<bool> {
        let wanted = (PIPE_BYTES / self.page).max(1) * self.page;
        let Some(mut left) = splice(self.raw.as_raw_fd(), to, wanted).at("read", &self.raw_path)? else {
            return Ok(false);
        };
        self.written += left as u64;
        let any = left > 0;
        while left > 0 {
            match splice(from, self.output.as_raw_fd(), left).at("write", &self.output_path)? {
                Some(count) if count > 0 => left -= count,
                _ => return Err(io::Error::from(ErrorKind::WriteZero)).at("write", &self.output_path),
            }
        }
        Ok(any)
    }

    /// Copies a page that is not full. Returns true if there was one.
    fn read_rest(&mut self) -> Result<bool> {
        let mut page = vec![0; self.page];
        match io::Read::read(&mut self.raw, &mut page) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.output.write_all(&page[..count]).at("write", &self.output_path)?;
                self.written += count as u64;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).at("read", &self.raw_path),
        }
    }
}

/// Moves up to `length` bytes. Returns `None` if nothing is available.
fn splice(from: RawFd, to: RawFd, length: usize) -> io::Result<Option<usize>> {
    loop {
        let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
        // SAFETY: the descriptors are ours, and the null pointers mean no offsets.
        let count =
            unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), length, flags) };
        if let Ok(count) = usize::try_from(count) {
            return Ok(Some(count));
        }
        match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::Interrupted => {}
            error if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            error => return Err(error),
        }
    }
}

fn is_ringing(bell: &Bell) -> bool {
    let mut polled = libc::pollfd { fd: bell.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, which lives through the call.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 }
}
