// SPDX-License-Identifier: MIT OR Apache-2.0
//! The target's side: runs a command line of kprism, passes its output on, sends its run, and removes everything.
//!
//! The first thread supervises and never writes to the connection, which can block for as long as a dead link is not noticed.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kprism_signals::Second;
use kprism_tracefs::journal;
use serde::{Deserialize, Serialize};

use crate::frame::{CHUNK, Frame};
use crate::leftover;
use crate::place::{VARIABLE, given_in, program_in, run_in};
use crate::rename::Rename;

/// Facts that the copy on the target tells of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The name that the machine has for itself.
    pub name: String,
    /// Release of its kernel.
    pub kernel: String,
    /// User ID that kprism has there; 0 is root.
    pub user: u32,
}

const TICK: Duration = Duration::from_millis(10);
/// The other side sends a frame every few seconds. After this time without one it is gone.
const SILENCE: Duration = Duration::from_secs(60);
/// Time that output may still come after the command line has ended: from processes that it left running.
const LATE: Duration = Duration::from_millis(500);
/// Time that a killed recorder and its guard may take until tracefs is as it was. A loaded machine takes seconds for each file.
const RESTORING: Duration = Duration::from_secs(300);

/// State that the threads share.
struct Link {
    out: Mutex<File>,
    lost: AtomicBool,
    interrupts: AtomicU32,
    heard: Mutex<Instant>,
    /// Streams of the command line that are still read.
    open: AtomicUsize,
}

impl Link {
    /// Sends a frame. If that fails, the connection is lost.
    fn send(&self, frame: &Frame) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        frame.write(&mut *out).inspect_err(|_| self.lost.store(true, Ordering::SeqCst))
    }

    /// Returns true if the other side is gone, or this process was told to end.
    fn is_lost(&self) -> bool {
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        self.lost.load(Ordering::SeqCst) || kprism_signals::end_requested() || heard.elapsed() > SILENCE
    }
}

/// Serves the connection on standard input and output. The folder is the second argument. Returns the exit code of the process.
pub fn serve() -> u8 {
    let Some(folder) =
        std::env::args_os().nth(2).map(PathBuf::from).filter(|folder| program_in(folder).is_file())
    else {
        return 2;
    };
    let had_journal = journal::folder().exists();
    let served = serve_in(&folder);
    if !had_journal {
        journal::forget();
    }
    let failed = match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => format!("{}: {error}", folder.display()),
        _ => String::new(),
    };
    let Ok(link) = served else { return 1 };
    let told = thread::spawn(move || link.send(&Frame::Removed(failed.into())));
    let began = Instant::now();
    while !told.is_finished() && began.elapsed() < Duration::from_secs(5) {
        thread::sleep(TICK);
    }
    0
}

/// Why serving ended before its time; the other side cannot be told.
struct Lost;

fn serve_in(folder: &Path) -> Result<Arc<Link>, Lost> {
    // Also a connection that is closed ends by itself: nothing here may be ended by a signal before it has cleaned up.
    let _ = kprism_signals::catch(Second::Ignored);
    leftover::adopt();
    let out = io::stdout().as_fd().try_clone_to_owned().map_err(|_| Lost)?;
    let link = Arc::new(Link {
        out: Mutex::new(out.into()),
        lost: AtomicBool::new(false),
        interrupts: AtomicU32::new(0),
        heard: Mutex::new(Instant::now()),
        open: AtomicUsize::new(2),
    });
    let (words_to, words) = channel();
    let (input_to, input) = channel();
    let reader = Arc::clone(&link);
    let place = folder.to_owned();
    thread::spawn(move || {
        let end = read(&reader, &place, &words_to, &input_to);
        if let Err(error) = end {
            // It is most likely the given file that found no space.
            let _ = reader.send(&Frame::Error(format!("kprism: {error}\n").into()));
        }
        reader.lost.store(true, Ordering::SeqCst);
    });
    let greeter = Arc::clone(&link);
    thread::spawn(move || greeter.send(&Frame::Machine(serde_json::to_vec(&machine()).unwrap_or_default())));
    let Some((words, shown)) = until(&link, || words.try_recv().ok()) else { return Err(Lost) };

    let mut command = Command::new(program_in(folder));
    command.args(words.into_iter().map(std::ffi::OsString::from_vec));
    command.env(VARIABLE, folder).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // If this process is killed, the recorder ends as by `kill`. SAFETY: prctl is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    let code = match command.spawn() {
        Ok(mut child) => {
            pumps(&link, &mut child, input, folder, &shown);
            match wait(&link, &mut child) {
                Some(code) => code,
                None => {
                    leftover::end_all(RESTORING);
                    // For a recorder that was killed before its guard ran.
                    let _ = journal::undo_stale();
                    return Err(Lost);
                }
            }
        }
        Err(error) => {
            link.open.store(0, Ordering::SeqCst);
            let text = format!("kprism: {}: {error}\n", program_in(folder).display());
            let link = Arc::clone(&link);
            thread::spawn(move || link.send(&Frame::Error(text.into())));
            2
        }
    };
    let closer = Arc::clone(&link);
    let run = run_in(folder);
    let closing = thread::spawn(move || close(&closer, code, &run));
    let done = until(&link, || closing.is_finished().then_some(()));
    done.map(|()| link).ok_or(Lost)
}

/// Waits for a value, for as long as the connection lives.
fn until<T>(link: &Link, mut value: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(value) = value() {
            return Some(value);
        }
        if link.is_lost() {
            return None;
        }
        thread::sleep(TICK);
    }
}

/// Words of a command line, and the name of its run's folder on the other side.
type Words = (Vec<Vec<u8>>, Vec<u8>);

/// Reads frames until the connection ends.
fn read(link: &Link, folder: &Path, words_to: &Sender<Words>, input: &Sender<Vec<u8>>) -> io::Result<()> {
    let mut from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut file: Option<File> = None;
    while let Some(frame) = Frame::read(&mut from)? {
        *link.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        match frame {
            Frame::Word(word) => words.push(word),
            Frame::Given => file = Some(File::create_new(given_in(folder))?),
            Frame::Data(bytes) => {
                let named =
                    |error: io::Error| io::Error::new(error.kind(), format!("the given file: {error}"));
                file.iter_mut().try_for_each(|file| file.write_all(&bytes)).map_err(named)?;
            }
            Frame::End => file = None,
            // The first word is the folder's name.
            Frame::Start if !words.is_empty() => {
                let shown = words.remove(0);
                let _ = words_to.send((std::mem::take(&mut words), shown));
            }
            Frame::Interrupt => {
                link.interrupts.fetch_add(1, Ordering::SeqCst);
            }
            Frame::Input(bytes) => {
                let _ = input.send(bytes);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A stream of the command line, if it has one.
type Pipe = Option<Box<dyn Read + Send>>;
/// Makes a frame of bytes.
type Wrap = fn(Vec<u8>) -> Frame;

/// Starts the threads between the connection and the command line's standard input, output and error.
fn pumps(link: &Arc<Link>, child: &mut Child, input: Receiver<Vec<u8>>, folder: &Path, shown: &[u8]) {
    let stdin = child.stdin.take();
    let asker = Arc::clone(link);
    thread::spawn(move || {
        let Some(mut stdin) = stdin else { return };
        // One piece is under way at a time, so that a command that does not read takes no memory.
        while asker.send(&Frame::WantInput).is_ok() {
            match input.recv() {
                Ok(bytes) if !bytes.is_empty() && stdin.write_all(&bytes).is_ok() => {}
                _ => break,
            }
        }
    });
    let run = run_in(folder);
    let streams: [(Pipe, Wrap); 2] = [
        (child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>), Frame::Output),
        (child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>), Frame::Error),
    ];
    for (mut pipe, frame) in streams {
        let link = Arc::clone(link);
        let mut rename = Rename::new(run.as_os_str().as_bytes(), shown);
        thread::spawn(move || {
            if let Some(pipe) = &mut pipe {
                let _ = pump(&link, pipe.as_mut(), frame, &mut rename);
            }
            link.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Passes a stream on until its end.
fn pump(link: &Link, pipe: &mut dyn Read, frame: Wrap, rename: &mut Rename) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let bytes = match pipe.read(&mut buffer) {
            Ok(0) => return link.send(&frame(rename.rest())),
            Ok(read) => rename.pass(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if !bytes.is_empty() {
            link.send(&frame(bytes))?;
        }
    }
}

/// Waits for the command line's end, and passes Ctrl-C on. Returns its exit code, or nothing if the connection is lost: then
/// the command line has ended too.
fn wait(link: &Link, child: &mut Child) -> Option<u8> {
    let group = child.id();
    let mut lost: Option<Instant> = None;
    let mut step = 0;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            return lost.is_none().then(|| code.and_then(|code| u8::try_from(code).ok()).unwrap_or(2));
        }
        if link.interrupts.swap(0, Ordering::SeqCst) > 0 {
            // As a terminal does: to the recorder and to its command.
            leftover::signal_group(group, libc::SIGINT);
        }
        if lost.is_none() && link.is_lost() {
            lost = Some(Instant::now());
        }
        if let Some(since) = lost {
            // The recorder should put everything back itself. It cannot, if its command goes on.
            let due = [0, 2, 4, 6].map(Duration::from_secs);
            if due.get(step).is_some_and(|&due| since.elapsed() >= due) {
                match step {
                    0 => leftover::signal_group(group, libc::SIGINT),
                    1 => leftover::signal_group(group, libc::SIGTERM),
                    2 => leftover::kill_below(group),
                    _ => drop(child.kill()),
                }
                step += 1;
            }
        }
        thread::sleep(TICK);
    }
}

/// Sends the exit code and the run, if there is one.
fn close(link: &Link, code: u8, run: &Path) -> io::Result<()> {
    let began = Instant::now();
    while link.open.load(Ordering::SeqCst) > 0 && began.elapsed() < LATE {
        thread::sleep(TICK);
    }
    link.send(&Frame::Ended(code))?;
    if !run.is_dir() {
        return Ok(());
    }
    if let Err(error) = crate::archive::pack(run, &mut |frame| link.send(&frame)) {
        link.send(&Frame::Unreadable(format!("{error:#}").into()))?;
    }
    Ok(())
}

fn machine() -> Machine {
    let line = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // SAFETY: it takes nothing and gives a number.
    let user = unsafe { libc::geteuid() };
    Machine { name: line("/proc/sys/kernel/hostname"), kernel: line("/proc/sys/kernel/osrelease"), user }
}
