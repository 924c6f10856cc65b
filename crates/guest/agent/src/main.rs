// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's init: starts the guest, waits for a job, runs it, reports, and ends the machine.

mod boot;
mod collect;
mod job;
mod network;
mod ports;
mod root;
mod storage;
mod unpack;

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use kprism_agent::mark::{MARK_STOP, mark};
use kprism_agent::{
    CONTROL_PORT, EXIT_PORT, JOB_FILE, Job, Message, PAUSE, PAUSE_PORT, Region, SHARE_FILE, gcov,
};
use kprism_layout::GcovFiles;

fn main() {
    if std::process::id() != 1 {
        std::process::exit(helper());
    }
    if let Err(error) = serve() {
        // If an init was started, this runs in the agent's own process.
        say(&Message::Failed { what: error.to_string() });
    }
    loop {
        ports::write(EXIT_PORT, &[0]);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The program's job when it is not init: it collects coverage on a machine without any other part of kprism.
fn helper() -> i32 {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["gcov"] => archive(),
        ["gcov", run, program, ref more @ ..] => session(Path::new(run), program, more),
        _ => {
            eprintln!(
                "kprism-agent is the init of a guest of `kprism lab`. Elsewhere it collects the kernel's coverage:\n\
                 kprism-agent gcov            all counters as an archive, to standard output\n\
                 kprism-agent gcov RUN CMD…   what CMD made the kernel execute, as a run folder"
            );
            return 2;
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("kprism-agent: {error}");
        2
    })
}

fn unreadable(error: io::Error) -> io::Error {
    io::Error::other(format!("{}: {error}", gcov::FOLDER))
}

fn archive() -> io::Result<i32> {
    let folder = Path::new(gcov::FOLDER);
    let snapshot = gcov::Snapshot::take(folder, 0).map_err(unreadable)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    snapshot.archive(folder, &mut out).and_then(|()| out.flush())?;
    Ok(0)
}

fn session(run: &Path, program: &str, arguments: &[&str]) -> io::Result<i32> {
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    let mut session = gcov::Session::begin(Path::new(gcov::FOLDER)).map_err(unreadable)?;
    let status = command.status().map_err(|error| io::Error::other(format!("{program}: {error}")));
    session.end().map_err(unreadable)?;
    session.save(&GcovFiles::of(run))?;
    Ok(status?.code().unwrap_or(1))
}

fn serve() -> io::Result<()> {
    ports::allow_ports(true)?;
    boot::mount_all()?;
    fs::write("/proc/sys/kernel/kptr_restrict", "0").ok();
    fs::create_dir_all("/root")?;
    boot::seed_random();
    network::start();
    boot::load_modules()?;
    storage::set_up()?;
    match root::set_up()? {
        Some(state) => say(&Message::Init { state }),
        // An init of the guest's own does this, too.
        None => network::connect()?,
    }
    if let Some(state) = root::unused_init() {
        say(&Message::Init { state });
    }
    let before = modules();
    let mut job = wait_for_job(&before)?;
    say(&Message::Accepted);
    while job.makes_ready {
        unpack_share(&job)?;
        let (code, _) = job::run(&job, |message| say(&message))?;
        if code != 0 {
            say(&Message::Exit { code });
            return Ok(());
        }
        job = wait_for_next_job(&job)?;
        say(&Message::Accepted);
    }
    if !job.files.is_empty() {
        collect::send_files(&job.files, give_piece)?;
        say(&Message::Exit { code: 0 });
        return Ok(());
    }
    unpack_share(&job)?;
    let (code, counters) = job::run(&job, |message| say(&message))?;
    let after = modules();
    // Reading kallsyms takes a second of guest time, so it is done only if there is something new in it.
    if module_names(&after) != module_names(&before)
        || boot::has_bpf_programs()
        || boot::is_traced(job.leaves_tracer)
    {
        let kallsyms = read("/proc/kallsyms");
        let lines =
            kallsyms.lines().filter(|line| line.ends_with(']')).flat_map(|line| [line, "\n"]).collect();
        say(&Message::Modules { modules: after, kallsyms: lines });
    }
    // These run after the symbols were read: they may remove a tracer, and its code with it.
    for line in &job.after {
        say(&Message::After { output: job::output_of(line, &job) });
    }
    if let Some(session) = counters {
        session.save(&GcovFiles::of(Path::new(COUNTERS)))?;
        give(Path::new(COUNTERS))?;
    } else if !job.collect.is_empty() {
        give(Path::new(&job.collect))?;
    }
    if job.sync {
        // SAFETY: sync only writes back what the kernel holds.
        unsafe { libc::sync() };
    }
    say(&Message::Exit { code });
    Ok(())
}

/// Unpacks the files that the job comes with.
fn unpack_share(job: &Job) -> io::Result<()> {
    if !job.share {
        return Ok(());
    }
    let (selector, size) = ports::find_file(SHARE_FILE)
        .ok_or_else(|| io::Error::other("the shared files are missing from fw_cfg"))?;
    unpack::unpack(ports::ConfigFile::new(selector, size)?, Path::new("/"))?;
    storage::settle();
    Ok(())
}

/// Folder for counters that the agent read, until the host has them.
const COUNTERS: &str = "/run/.kprism-gcov";

/// Sends a folder's contents to the host.
fn give(folder: &Path) -> io::Result<()> {
    collect::send(folder, give_piece)
}

/// Has the host read a piece of an archive.
fn give_piece(region: Region) {
    say(&Message::Piece { region });
    ports::write(PAUSE_PORT, &[PAUSE]);
}

/// Turns of a loop that takes 100 µs of guest time or more, five times as long as the host accepts for the way to a stop.
const LET_GO: u32 = 100_000;

/// Reads the job from fw_cfg. If there is none yet, a snapshot will be taken: the guest reports that it is ready,
/// exposes its symbols, and stops. After it resumes there is a job.
fn wait_for_job(modules: &str) -> io::Result<Job> {
    let mut shown = None;
    loop {
        if let Some(job) = read_job()? {
            drop(shown);
            return Ok(job);
        }
        if shown.is_none() {
            boot::settle();
            shown = Some(show_symbols(modules)?);
            give_memory_back();
            stop();
            if ports::find_file(JOB_FILE).is_none() {
                ports::write(PAUSE_PORT, &[PAUSE]);
            }
            continue;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gives freed memory back to the kernel. The kernel's symbols leave 5 MB of it, whose page tables each fork would copy and each
/// exec would free, within what is recorded of a command; how much depended on where this program's heap begins.
fn give_memory_back() {
    // SAFETY: frees only what is free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Stops the guest, which a job has made ready, and returns the next job when it goes on. The old job is still in fw_cfg until
/// then.
fn wait_for_next_job(last: &Job) -> io::Result<Job> {
    boot::settle();
    stop();
    loop {
        match read_job()? {
            Some(job) if job != *last => return Ok(job),
            _ => ports::write(PAUSE_PORT, &[PAUSE]),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tells the host that the guest can be saved now, and has the observer hold it there, if there is one: then QEMU stops it, and
/// there is a job when it goes on.
fn stop() {
    say(&Message::Stops { at_ns: ports::time_stamp() });
    mark(MARK_STOP, 0);
    // A guest that was let go before QEMU stopped it stops somewhere in here, which is noticed: guest time passes.
    for _ in 0..LET_GO {
        std::hint::black_box(());
    }
}

/// The job in fw_cfg, if there is one.
fn read_job() -> io::Result<Option<Job>> {
    let Some((selector, size)) = ports::find_file(JOB_FILE) else { return Ok(None) };
    let text = ports::read_file(selector, size)?;
    serde_json::from_slice(&text).map(Some).map_err(io::Error::other)
}

/// Sends [`Message::Ready`]. The returned buffers hold the memory to which it refers.
fn show_symbols(modules: &str) -> io::Result<Vec<ports::PinnedBuffer>> {
    let mut buffers = Vec::new();
    let mut hold = |contents: io::Result<Vec<u8>>| -> io::Result<Option<(usize, usize)>> {
        let Ok(contents) = contents else { return Ok(None) };
        buffers.push(ports::PinnedBuffer::holding(&contents)?);
        Ok(Some((buffers.len() - 1, contents.len())))
    };
    let held =
        [hold(fs::read("/proc/kallsyms"))?, hold(fs::read("/sys/kernel/btf/vmlinux"))?, hold(boot::vdso())?];
    let places = |buffers: &[ports::PinnedBuffer]| -> io::Result<[Option<Region>; 3]> {
        let mut regions = [const { None }; 3];
        for (region, held) in regions.iter_mut().zip(held) {
            *region = held.map(|(buffer, length)| buffers[buffer].region(length)).transpose()?;
        }
        Ok(regions)
    };
    let release = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let build_id = boot::build_id();
    // The kernel may move pages that were locked a moment ago, while it makes room for others. The last message counts.
    loop {
        let regions = places(&buffers)?;
        let [kallsyms, btf, vdso] = regions.clone();
        let (modules, build_id, release) = (modules.to_owned(), build_id.clone(), release.clone());
        say(&Message::Ready { release, kallsyms, btf, vdso, modules, build_id });
        if places(&buffers)? == regions {
            return Ok(buffers);
        }
    }
}

fn modules() -> String {
    read("/proc/modules")
}

/// Name and address of each module. Reference counts are left out: they may change without a module being loaded or
/// unloaded.
fn module_names(modules: &str) -> Vec<(&str, &str)> {
    let mut names: Vec<_> = modules
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.find(|word| word.starts_with("0x"))?))
        })
        .collect();
    names.sort_unstable();
    names
}

fn read(path: &str) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn say(message: &Message) {
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        ports::write(CONTROL_PORT, &line);
    }
}
