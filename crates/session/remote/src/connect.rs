// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts ssh, and has the target take the program and start it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use kprism_placed::frame::Frame;
use kprism_session::Progress;

use crate::program::{self, Copied};
use crate::run::Recorder;
use crate::script::{self, Line};
use crate::target::Target;

/// Environment variable that names another program than `ssh`.
pub const SSH: &str = "KPRISM_SSH";
const TICK: Duration = Duration::from_millis(50);
/// Time between two frames that say that this side lives.
const PING: Duration = Duration::from_secs(5);
/// Bytes that start files of the login shell may print before the script's first line.
const NOISE: u64 = 1 << 20;

/// A connection to the copy of kprism on the target.
pub struct Link {
    ssh: Child,
    from: BufReader<ChildStdout>,
    to: Arc<Mutex<ChildStdin>>,
    /// The copy runs: frames can be sent.
    speaks: Arc<AtomicBool>,
    closed: Arc<AtomicBool>,
    /// The program that runs there.
    copied: Copied,
}

impl Link {
    /// The program that runs there.
    pub fn copied(&self) -> Copied {
        self.copied
    }

    /// Sends a frame. An error is not reported: the reader will find that the connection has ended.
    pub fn send(&self, frame: &Frame) {
        send(&self.to, frame);
    }

    /// A sender for another thread.
    pub fn sender(&self) -> impl Fn(&Frame) + Send + use<> {
        let to = Arc::clone(&self.to);
        move |frame| send(&to, frame)
    }

    /// The next frame; `None` if the connection has ended.
    pub fn next(&mut self) -> Result<Option<Frame>> {
        match Frame::read(&mut self.from) {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(error.into()),
            Err(_) => Ok(None),
            Ok(frame) => Ok(frame),
        }
    }

    /// Waits for ssh to end, but not for long: it may serve other connections of the user.
    pub fn close(&mut self) -> Option<ExitStatus> {
        self.closed.store(true, Ordering::SeqCst);
        let began = Instant::now();
        loop {
            match self.ssh.try_wait() {
                Ok(None) if began.elapsed() < Duration::from_secs(5) => thread::sleep(TICK),
                Ok(None) => {
                    let _ = self.ssh.kill();
                    return self.ssh.wait().ok();
                }
                ended => return ended.ok().flatten(),
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        let _ = self.ssh.kill();
        let _ = self.ssh.wait();
    }
}

fn send(to: &Mutex<ChildStdin>, frame: &Frame) {
    let _ = frame.write(&mut *to.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Connects, copies this program to the target, or the recorder for its processor, and starts it there. Ctrl-C ends the attempt.
///
/// # Errors
/// ssh cannot be started or connect, the target is of another kind, or no folder there takes the program.
pub fn connect(target: &Target, recorder: &Recorder, progress: &Progress) -> Result<Link> {
    let own = std::fs::read("/proc/self/exe").context("this program, to copy it to the target")?;
    let nonce = nonce()?;
    let mut command = ssh(target, &script::command(&nonce));
    let program = command.get_program().to_string_lossy().into_owned();
    let remedy = || format!("{program} cannot be started: install openssh-client, or name another in {SSH}");
    let mut ssh = command.spawn().with_context(remedy)?;
    let (Some(to), Some(from)) = (ssh.stdin.take(), ssh.stdout.take()) else { bail!("ssh has no pipes") };
    let flags = || Arc::new(AtomicBool::new(false));
    let to = Arc::new(Mutex::new(to));
    let copied = Copied::Kprism;
    let mut link = Link { from: BufReader::new(from), to, speaks: flags(), closed: flags(), ssh, copied };
    keep(&link);
    progress.step(&format!("connecting to {}", target.destination));
    match hand_over(&mut link, target, &nonce, (own, recorder), progress) {
        Ok(()) => {
            link.speaks.store(true, Ordering::SeqCst);
            progress.clear();
            Ok(link)
        }
        Err(_) if kprism_signals::end_requested() => bail!("interrupted before anything was recorded"),
        Err(error) => Err(error),
    }
}

/// A thread that pings, and passes Ctrl-C on.
fn keep(link: &Link) {
    let (to, speaks, closed) = (Arc::clone(&link.to), Arc::clone(&link.speaks), Arc::clone(&link.closed));
    let ssh = link.ssh.id();
    thread::spawn(move || {
        let mut interrupted = false;
        let mut pinged = Instant::now();
        while !closed.load(Ordering::SeqCst) {
            if kprism_signals::end_requested() && !interrupted {
                interrupted = true;
                match speaks.load(Ordering::SeqCst) {
                    true => send(&to, &Frame::Interrupt),
                    false => terminate(ssh),
                }
            }
            if speaks.load(Ordering::SeqCst) && pinged.elapsed() >= PING {
                send(&to, &Frame::Ping);
                pinged = Instant::now();
            }
            thread::sleep(TICK);
        }
    });
}

/// Ends ssh, which is a child that nobody has waited for: waiting comes after `closed`.
fn terminate(ssh: u32) {
    if let Ok(pid) = libc::pid_t::try_from(ssh) {
        // SAFETY: kill touches no memory of ours.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

/// ssh's command line. Its own configuration applies, but for what would disturb: forwarded ports, another command, a
/// terminal. It is not made the master of later connections, as it must end when this one does.
fn ssh(target: &Target, script: &str) -> Command {
    let program = std::env::var_os(SSH).filter(|name| !name.is_empty()).unwrap_or_else(|| "ssh".into());
    let mut command = Command::new(program);
    command.args(["-T", "-x", "-C"]);
    for option in [
        "ControlMaster=no",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "RequestTTY=no",
        "ServerAliveInterval=15",
        "ServerAliveCountMax=3",
    ] {
        command.args(["-o", option]);
    }
    if let Some(port) = target.port {
        command.args(["-p", &port.to_string()]);
    }
    command.args(["--", &target.destination, script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            // A terminal's Ctrl-C is for this program, which passes it on; ssh would close the connection.
            libc::signal(libc::SIGINT, libc::SIG_IGN);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            Ok(())
        });
    }
    command
}

/// Speaks with the script until the copy runs. `own`: this program.
fn hand_over(
    link: &mut Link,
    target: &Target,
    nonce: &str,
    (own, recorder): (Vec<u8>, &Recorder),
    progress: &Progress,
) -> Result<()> {
    let mut program = own;
    let host = &target.destination;
    let mut refused: Vec<String> = Vec::new();
    let mut noise = 0;
    let mut greeted = false;
    loop {
        let mut line = Vec::new();
        let read = (&mut link.from).take(NOISE).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            return Err(ended(link, host, greeted));
        }
        noise += read.unwrap_or(0) as u64;
        if noise > NOISE {
            bail!(
                "{host}: the login shell prints more than {NOISE} bytes before it runs the command it is given"
            );
        }
        match Line::parse(nonce, &String::from_utf8_lossy(&line)) {
            Some(Line::Hello { system, machine }) => {
                (link.copied, program) = program::choose(program, &system, &machine, recorder)
                    .map_err(|why| anyhow!("{host}: {why}"))?;
                say(link, script::go(program.len() as u64).as_bytes())?;
                greeted = true;
            }
            Some(Line::No(why)) => refused.push(why),
            // A failed write shows as the end of what is read.
            Some(Line::Send) => {
                let _ = upload(link, &program, host, progress);
            }
            Some(Line::None) => {
                let reasons = refused.iter().map(|why| format!("\n  {why}")).collect::<String>();
                bail!(
                    "{host}: no folder there takes kprism ({} MB), which runs from it:{reasons}\n\
                     free some space, or set TMPDIR there (in ~/.ssh/environment or the shell's start files) to a folder \
                     that can be written to and executes programs",
                    program.len().div_ceil(1_000_000)
                );
            }
            Some(Line::Bad(why)) => bail!("{host}: kprism does not run there: {why}"),
            Some(Line::Run(folder)) => {
                progress.detail(&format!("{host}: in {folder}"));
                return Ok(());
            }
            None => {}
        }
    }
}

fn say(link: &Link, bytes: &[u8]) -> std::io::Result<()> {
    let mut to = link.to.lock().unwrap_or_else(PoisonError::into_inner);
    to.write_all(bytes)?;
    to.flush()
}

fn upload(link: &Link, program: &[u8], host: &str, progress: &Progress) -> std::io::Result<()> {
    let mut done = 0;
    for piece in program.chunks(1 << 18) {
        progress.amount(&format!("copying kprism to {host}"), done, program.len() as u64);
        say(link, piece)?;
        done += piece.len() as u64;
    }
    progress.clear();
    progress.step(&format!("starting kprism on {host}"));
    Ok(())
}

/// The error of a connection that ended before the copy ran.
fn ended(link: &mut Link, host: &str, greeted: bool) -> anyhow::Error {
    let status = link.close();
    match (greeted, status.and_then(|status| status.code())) {
        (true, _) => anyhow!("{host}: the connection ended while kprism was copied; nothing is left there"),
        (false, Some(255)) => anyhow!("{host}: ssh could not connect; it says why above"),
        (false, Some(code)) => anyhow!(
            "{host}: the login shell ended with {code} and did not run the command it was given: an account with a POSIX \
             shell is needed"
        ),
        (false, None) => anyhow!("{host}: ssh was ended by a signal"),
    }
}

/// A number that nobody can guess, as 32 hexadecimal digits.
pub fn nonce() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("/dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
