// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism gdbserver`: sessions of the real GDB, with what it prints asserted. Natively with programs whose values are
//! known, and in the guest with the kernel.

mod gdb;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gdb::{PATIENCE, Running, Server, allowed, built, numbers_after, section, session};
use kprism_test::{test, until};

const FOLDER: &str = gdb::FOLDER;
const CASE: &str = include_str!("probe/case.c");

fn line_of(mark: &str) -> usize {
    CASE.lines().position(|line| line.contains(mark)).expect("a line")
}

#[test]
fn the_papers_session_with_a_process() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    for flags in [&["-O0"][..], &["-O2"]] {
        let program = built(dir.path(), &Path::new(FOLDER).join("paper.c"), flags);
        let target = Running(Command::new(&program).spawn().unwrap());
        let pid = target.0.id().to_string();
        let server = Server::start(dir.path(), &["--pid", &pid], &[], Stdio::null());
        let text = server.gdb(
            Some(&program),
            "trace kgtp_test_function\n\
             echo == false\\n\n\
             condition 1 2*counter1+3*counter2<0\n\
             actions\ncollect 2*counter1+3*counter2\nend\n\
             tstart\nshell sleep 2\ntstop\ntstatus\ninfo tracepoints\n\
             echo == expression\\n\n\
             condition 1\n\
             tstart\nshell sleep 2\ntstop\ntstatus\n\
             tfind 1\ntdump\ntfind\ntdump\n\
             echo == both\\n\n\
             condition 1 2*counter1+3*counter2>0\n\
             tstart\nshell sleep 2\ntstop\ntstatus\n\
             tfind 1\ntdump\ntfind\ntdump\n",
        );
        let of = section(&text, "false");
        assert!(of.contains("Collected 0 trace frames."), "{text}");
        assert!(of.contains("trace only if 2*counter1+3*counter2<0"), "{text}");
        for name in ["expression", "both"] {
            let of = section(&text, name);
            let values: Vec<i64> = numbers_after(of, "2*counter1+3*counter2 = ").collect();
            // counter1 is one more than counter2: 5 n + 2.
            assert!(values.len() == 2 && values[0] % 5 == 2 && values[1] == values[0] + 5, "{name}: {text}");
            let frames = of.split("Collected ").nth(1).and_then(|t| t.split(' ').next()?.parse::<u32>().ok());
            assert!(frames.is_some_and(|n| n > 20), "{name}: {text}");
        }
    }
}

/// A program from its first instruction to its end: every value is the one that it prints.
#[test]
fn values_are_those_that_the_program_prints() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/case.c");
    for flags in [&["-O0"][..], &["-O0", "-no-pie"]] {
        let program = built(dir.path(), &source, flags);
        let printed = dir.path().join("printed");
        let stdout = fs::File::create(&printed).unwrap().into();
        let mut server = Server::start(dir.path(), &["--exec", program.to_str().unwrap()], &[], stdout);
        let script = format!(
            "trace case.c:{}\n\
             condition 1 2*a + 3*b < 0\n\
             actions\ncollect n, a, b, total, *item\ncollect/s who\nend\n\
             tstart\ncontinue\ntstop\ntstatus\n\
             echo == frames\\n\n\
             tfind start\n\
             while $trace_frame != -1\n\
             printf \"> %d %d %ld %ld %s %d %u %u %d %s %.2f\\n\", n, a, b, total, who, item->id, item->flags, \
             item->kind, item->colour, item->name, item->weight\n\
             tfind\nend\n\
             echo == end\\n\n\
             print total\ncontinue\n",
            line_of("// PROBE")
        );
        let text = server.gdb(Some(&program), &script);
        assert!(text.contains("the program is at its end"), "{text}");
        assert!(text.contains("Collected 38 trace frames."), "{text}");
        let printed = fs::read_to_string(&printed).unwrap();
        let number = |line: &str, at: usize| line.split(' ').nth(at).unwrap().parse::<i64>().unwrap();
        let wanted: Vec<&str> =
            printed.lines().filter(|line| 2 * number(line, 1) + 3 * number(line, 2) < 0).collect();
        let found: Vec<&str> =
            section(&text, "frames").lines().filter_map(|line| line.strip_prefix("> ")).collect();
        assert_eq!(found, wanted);
        let last = number(printed.lines().last().unwrap(), 3);
        assert!(section(&text, "end").contains(&format!("$1 = {last}")), "{text}");
        assert!(text.contains("exited with code 03"), "{text}");
        // The program is gone, and so is the server.
        let mut left = None;
        until(PATIENCE, "the server stays", || {
            left = server.process.0.try_wait().unwrap();
            left.is_some()
        });
        assert_eq!(left.unwrap().code(), Some(0));
        assert!(!server.socket.exists());
    }
}

/// A program of many threads, by TCP: each call of each thread gives a frame, and each frame has its own thread's values.
#[test]
fn threads_by_tcp() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &Path::new(FOLDER).join("threads.c"), &["-O0", "-pthread"]);
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args(["gdbserver", "--exec", program.to_str().unwrap(), &format!(":{free}")]);
    let mut server = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    let mut stderr = BufReader::new(server.0.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert!(said.contains("target remote"), "{said}");
    let line = include_str!("gdbserver/threads.c").lines().position(|l| l.contains("// STEP")).unwrap() + 1;
    let script = dir.path().join("session.gdb");
    let text = format!(
        "set remotetimeout 60\nset pagination off\nset confirm off\nset sysroot /\nset print thread-events off\n\
         target remote 127.0.0.1:{free}\n\
         trace threads.c:{line}\n\
         actions\ncollect thread, n\nend\n\
         tstart\ncontinue\ntstop\ntstatus\n\
         echo == frames\\n\n\
         tfind start\n\
         while $trace_frame != -1\n\
         printf \"> %ld %ld\\n\", thread, n\n\
         tfind\nend\n\
         echo == end\\n\n\
         continue\n"
    );
    fs::write(&script, text).unwrap();
    let text = session(Some(&program), &script, dir.path());
    assert!(text.contains("Collected 200 trace frames."), "{text}");
    let pair = |line: &str| {
        let (thread, n) = line.strip_prefix("> ")?.split_once(' ')?;
        Some((thread.parse::<i64>().ok()?, n.parse::<i64>().ok()?))
    };
    let mut found: Vec<_> = section(&text, "frames").lines().filter_map(pair).collect();
    // Those of one thread are in order.
    for thread in 0..4 {
        let own = found.iter().filter(|f| f.0 == thread).map(|f| f.1);
        assert!(own.eq(0..50), "{text}");
    }
    found.sort_unstable();
    assert_eq!(found.len(), 200);
}

#[test]
fn everything_that_gdb_asks_for() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe/case.c");
    // A trace file does not tell GDB where a program is that can be anywhere.
    let program = built(dir.path(), &source, &["-O0", "-no-pie"]);
    let mut target = Running(Command::new(&program).arg("200").stdout(Stdio::piped()).spawn().unwrap());
    // Kept open and read: the target waits if nobody reads.
    let stdout = BufReader::new(target.0.stdout.take().unwrap());
    std::thread::spawn(move || stdout.lines().count());
    let pid = target.0.id().to_string();
    let server = Server::start(dir.path(), &["--pid", &pid], &[], Stdio::null());
    let line = line_of("// PROBE");
    let script = format!(
        "tvariable $seen = 5\n\
         trace case.c:{line}\n\
         condition 1 n % 3 == 0\n\
         actions\ncollect n, $seen, $trace_timestamp, $regs\nteval $seen = $seen + 1\nend\n\
         trace case.c:{}\n\
         actions\ncollect $args\nwhile-stepping 3\ncollect $regs\nend\nend\n\
         trace *work\n\
         actions\ncollect $rdi\nend\n\
         trace busy\n\
         set trace-notes a note\nset trace-user somebody\n\
         tstart\nshell sleep 2\n\
         echo == running\\n\ntstatus\n\
         disable 3\nshell sleep 1\n\
         echo == off 1\\n\ntstatus\ninfo tracepoints\nshell sleep 1\n\
         echo == off 2\\n\ntstatus\ninfo tracepoints\n\
         enable 3\nshell sleep 1\n\
         echo == on\\n\ntstatus\ninfo tracepoints\n\
         trace case.c:{line}\n\
         shell sleep 1\n\
         echo == variables\\n\ninfo tvariables\n\
         tstop enough\n\
         echo == stopped\\n\ntstatus\ninfo tracepoints\n\
         echo == finds\\n\n\
         tfind start\ntfind tracepoint 1\nprint n % 3\nset $first = $seen\n\
         tfind tracepoint 1\nprint $seen - $first\nprint $rip == $pc\nprint $trace_timestamp > 1700000000000000\n\
         tfind pc\ntfind line case.c:{line}\ntfind range &work, (char *)&work + 8\n\
         tfind outside &work, (char *)&work + 8\ntfind 7\nprint $trace_frame\n\
         tfind none\nprint $trace_frame\n\
         echo == saved\\n\n\
         tsave saved.tf\ntsave -r {remote}\ntsave -ctf saved.ctf\n\
         monitor status\nmonitor what\n",
        line - 3,
        remote = dir.path().join("remote.tf").display(),
    );
    let text = server.gdb(Some(&program), &script);
    assert!(text.contains("kprism: tracepoint 2: while-stepping is left out"), "{text}");
    let running = section(&text, "running");
    assert!(running.contains("Trace is running on the target."), "{text}");
    assert!(
        running.contains("Trace user is somebody.") && running.contains("Trace notes: a note."),
        "{text}"
    );
    let hits = |of: &str, number: u32| {
        let lines: Vec<&str> = section(&text, of).lines().collect();
        let at = lines.iter().position(|l| l.starts_with(&format!("{number} "))).expect("a tracepoint");
        let own = lines[at + 1..].iter().take_while(|l| l.starts_with(['\t', ' ']));
        own.filter_map(|l| l.trim().strip_prefix("tracepoint already hit ")?.split(' ').next()?.parse().ok())
            .next()
            .unwrap_or(0u32)
    };
    assert!(hits("off 1", 3) > 20, "{text}");
    assert_eq!(hits("off 1", 3), hits("off 2", 3), "{text}");
    assert!(hits("off 2", 2) > hits("off 1", 2), "{text}");
    assert!(hits("on", 3) > hits("off 2", 3), "{text}");
    // The one that was set while it ran.
    assert!(hits("stopped", 5) > 10 && hits("stopped", 4) == 0, "{text}");
    assert!(section(&text, "stopped").contains("Trace stopped by a tstop command (enough)."), "{text}");
    let seen: u32 = section(&text, "variables")
        .lines()
        .find_map(|l| l.strip_prefix("$seen")?.split_whitespace().nth(1)?.parse().ok())
        .expect("a value");
    assert!(seen > 5 && seen - 5 <= hits("stopped", 1), "{text}");
    let finds = section(&text, "finds");
    for wanted in [
        "$1 = 0\n",
        "$2 = 1\n",
        "$3 = 1\n",
        "$4 = 1\n",
        "Found trace frame 7, tracepoint",
        "$5 = 7\n",
        "No longer looking at any trace frame\n$6 = -1\n",
    ] {
        assert!(finds.contains(wanted), "{wanted}: {text}");
    }
    assert_eq!(finds.matches("No trace frame found").count(), 0, "{text}");
    let saved = section(&text, "saved");
    assert!(saved.contains("hits,") && saved.contains("kprism knows no `what`"), "{text}");
    let ctf = fs::metadata(dir.path().join("saved.ctf/datastream")).expect("a CTF trace");
    assert!(ctf.len() > 1000, "{text}");

    // Trace files that GDB reads without a server, and that say the same.
    let mut told = Vec::new();
    for file in ["saved.tf", "remote.tf"] {
        let script = dir.path().join("file.gdb");
        let commands =
            "tstatus\ntfind tracepoint 1\nprint n\nprint $rsp\ntfind tracepoint 1\nprint n\nprint $seen\n";
        fs::write(&script, format!("target tfile {file}\n{commands}")).unwrap();
        let text = session(Some(&program), &script, dir.path());
        assert!(text.contains("Trace stopped by a tstop command (enough)."), "{file}: {text}");
        assert!(text.contains("$4 = "), "{file}: {text}");
        told.push(text.lines().filter(|l| l.starts_with('$')).map(str::to_owned).collect::<Vec<_>>());
    }
    assert_eq!(told[0], told[1]);
    let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap();
    assert_eq!(value(&told[0][2]) - value(&told[0][0]), 3);
}

/// Without a note, as most type it: GDB 13 reads `tsave`'s file from what the server says, and must survive that.
#[test]
fn a_plain_tstop_and_tsave() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &Path::new(FOLDER).join("paper.c"), &["-O0", "-no-pie"]);
    let target = Running(Command::new(&program).spawn().unwrap());
    let pid = target.0.id().to_string();
    let server = Server::start(dir.path(), &["--pid", &pid], &[], Stdio::null());
    let text = server.gdb(
        Some(&program),
        "trace kgtp_test_function\nactions\ncollect counter1, counter2\nend\n\
         tstart\nshell sleep 1\ntstop\ntstatus\ntsave plain.tf\ntsave -ctf plain.ctf\necho == alive\\n\n",
    );
    assert!(text.contains("Trace stopped by a tstop command ().\n"), "{text}");
    assert!(text.contains("== alive"), "{text}");
    let script = dir.path().join("file.gdb");
    fs::write(&script, "target tfile plain.tf\ntstatus\ntfind start\nprint counter1 - counter2\n").unwrap();
    let text = session(Some(&program), &script, dir.path());
    assert!(text.contains("Trace stopped by a tstop command ().\n"), "{text}");
    assert!(text.contains("$1 = 1\n"), "{text}");
}

#[test]
fn limits_and_reconnecting() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &Path::new(FOLDER).join("paper.c"), &["-O0"]);
    let target = Running(Command::new(&program).spawn().unwrap());
    let pid = target.0.id().to_string();
    let server = Server::start(dir.path(), &["--pid", &pid], &[], Stdio::null());
    let collect = "actions\ncollect counter1, $regs\nend\n";
    // A pass count ends it at its number; what is full ends it, or drops the oldest.
    let text = server.gdb(
        Some(&program),
        &format!(
            "trace kgtp_test_function\n{collect}passcount 10 1\n\
             tstart\nshell sleep 2\necho == pass\\n\ntstatus\n\
             passcount 0 1\nset trace-buffer-size 4000\n\
             tstart\nshell sleep 2\necho == full\\n\ntstatus\n\
             set circular-trace-buffer on\n\
             tstart\nshell sleep 2\ntstop\necho == circular\\n\ntstatus\n\
             tfind start\nprint counter1\ntfind\nprint counter1\n\
             set trace-buffer-size unlimited\nset circular-trace-buffer off\n\
             set disconnected-tracing on\ntstart\n"
        ),
    );
    assert!(section(&text, "pass").contains("Trace stopped by tracepoint 1."), "{text}");
    assert!(section(&text, "pass").contains("Collected 10 trace frames."), "{text}");
    assert!(section(&text, "full").contains("Trace stopped because the buffer was full."), "{text}");
    let circular = section(&text, "circular");
    assert!(circular.contains("Trace buffer is circular."), "{text}");
    let counted: Vec<u32> = circular
        .lines()
        .find_map(|l| l.strip_prefix("Buffer contains "))
        .unwrap_or_else(|| panic!("{text}"))
        .split(' ')
        .filter_map(|w| w.parse().ok())
        .collect();
    assert!((6..40).contains(&counted[0]) && counted[1] > 100, "{text}");
    let values: Vec<i64> = numbers_after(circular, "$1 = ").chain(numbers_after(circular, "$2 = ")).collect();
    assert!(values.len() == 2 && values[1] == values[0] + 1 && values[0] > 100, "{text}");

    // GDB went; tracing goes on, and the next GDB is told what is traced.
    std::thread::sleep(Duration::from_secs(2));
    let text = server.gdb(
        Some(&program),
        "info tracepoints\ntstop\ntstatus\ntfind 300\nprint counter1\nset disconnected-tracing off\n\
         tstart\n",
    );
    assert!(text.contains("Assuming tracepoint") || text.contains("Created tracepoint"), "{text}");
    assert!(text.contains("collect counter1, $regs"), "{text}");
    assert!(text.contains("Found trace frame 300, tracepoint 1"), "{text}");
    let text = server.gdb(Some(&program), "tstatus\n");
    assert!(text.contains("Trace stopped because of disconnection"), "{text}");
}

/// The first byte of a function in the memory of a process that is loaded where it is linked.
fn first_byte(pid: u32, program: &Path, function: &str) -> u8 {
    let symbols = Command::new("nm").arg(program).output().expect("nm runs");
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with(&format!(" T {function}"))).expect("the function");
    let mut memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    memory.seek(std::io::SeekFrom::Start(address)).unwrap();
    let mut byte = [0];
    memory.read_exact(&mut byte).unwrap();
    byte[0]
}

#[test]
fn a_killed_server_leaves_nothing() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &Path::new(FOLDER).join("paper.c"), &["-O0", "-no-pie"]);
    let target = Running(Command::new(&program).spawn().unwrap());
    let pid = target.0.id();
    std::thread::sleep(Duration::from_millis(200));
    let byte = || first_byte(pid, &program, "kgtp_test_function");
    let before = byte();
    let mut server = Server::start(dir.path(), &["--pid", &pid.to_string()], &[], Stdio::null());
    let text = server.gdb(
        Some(&program),
        "ftrace *kgtp_test_function\nset disconnected-tracing on\ntstart\nx/i kgtp_test_function\n",
    );
    assert_ne!(byte(), before, "no breakpoint: {text}");
    // GDB does not see it.
    assert!(text.contains("push") && !text.contains("int3"), "{text}");
    server.process.0.kill().unwrap();
    server.process.0.wait().unwrap();
    until(PATIENCE, "the breakpoint stays", || byte() == before);
}

#[test]
fn what_cannot_be_is_said_and_the_rest_goes_on() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), &Path::new(FOLDER).join("paper.c"), &["-O0"]);
    let target = Running(Command::new(&program).spawn().unwrap());
    let pid = target.0.id().to_string();
    let server = Server::start(dir.path(), &["--pid", &pid], &[], Stdio::null());
    let text = server.gdb(
        Some(&program),
        "trace *0x10\n\
         trace kgtp_test_function\n\
         condition 2 100/(counter1-counter1) > 0\n\
         trace kgtp_test_function\n\
         actions\ncollect *(int *)8, counter1\nend\n\
         trace kgtp_test_function\n\
         actions\ncollect *(char (*)[100000])$rsp\nend\n\
         trace *(kgtp_test_function+2)\n\
         tstart\nshell sleep 1\ntstop\ntstatus\n\
         tfind tracepoint 3\nprint counter1 > 0\nprint *(int *)8\n",
    );
    assert!(
        text.contains("kprism: tracepoint 1 is not installed: 0x10: no file's code is mapped there"),
        "{text}"
    );
    assert!(
        text.contains("kprism: tracepoint 4 is not installed: 100200 bytes would be collected"),
        "{text}"
    );
    let middle = text.split("tracepoint 5 is not installed: ").nth(1).unwrap_or_default();
    assert!(middle.lines().next().unwrap_or_default().contains("in the middle of an instruction"), "{text}");
    assert!(text.contains("× division by zero"), "{text}");
    assert!(text.contains("× bad read"), "{text}");
    assert!(text.contains("$1 = 1"), "{text}");
    assert!(text.contains("$2 = <unavailable>"), "{text}");
    // A breakpoint, which would be passed unseen.
    let text = server.gdb(Some(&program), "break kgtp_test_function\ncontinue\ndelete\nprint 6 * 7\n");
    assert!(text.contains("kprism: nothing is stopped here, so a breakpoint (0x"), "{text}");
    assert!(text.contains("`trace` the place") && text.contains("$1 = 42"), "{text}");
    assert!(!text.contains("Cannot access memory"), "{text}");
    let said = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kprism")).arg("gdbserver").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said(&["--pid", "1", "0.0.0.0:1234"]).contains("loopback"));
    assert!(
        said(&["--pid", "4194304", dir.path().join("s").to_str().unwrap()]).contains("/proc/4194304/mem")
    );
    assert!(said(&["--exec", "/nowhere", dir.path().join("s").to_str().unwrap()]).contains("/nowhere"));
}

#[test]
fn the_papers_sessions_with_the_kernel_in_the_guest() {
    let dir = tempfile::tempdir().unwrap();
    let (share, module) = (dir.path().join("share"), dir.path().join("module"));
    let ok = |command: &mut Command| {
        let output = command.output().expect("a program");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let kprism = || Command::new(env!("CARGO_BIN_EXE_kprism"));
    // The release that the guest has.
    let run = dir.path().join("run");
    let release =
        ok(kprism().args(["-q", "lab", "run", "--unobserved", "-o"]).arg(&run).args(["--", "uname", "-r"]));
    fs::create_dir(&share).unwrap();
    fs::create_dir(&module).unwrap();
    fs::copy(format!("{FOLDER}/kgtp_module.h"), module.join("kgtp_module.h")).unwrap();
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-module.sh");
    ok(Command::new("sh")
        .arg(build)
        .args([release.trim(), module.to_str().unwrap(), &format!("{FOLDER}/kgtp.c")])
        .env("KCFLAGS", format!("-I{}", module.display())));
    // The kernel's build leaves addresses of sections in a module; GDB then takes none of those that it is given.
    let at_zero = ["--change-section-address", ".data=0", "--change-section-address"];
    ok(Command::new("objcopy")
        .args(at_zero)
        .arg("__patchable_function_entries=0")
        .args([module.join("kgtp.ko"), share.join("kgtp.debug")]));
    fs::copy(module.join("kgtp.ko"), share.join("kgtp.ko")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_kprism"), share.join("kprism")).unwrap();
    for name in ["guest.sh", "guest.gdb"] {
        fs::copy(format!("{FOLDER}/{name}"), share.join(name)).unwrap();
    }
    let output = kprism()
        .args(["lab", "run", "-q", "--unobserved", "--fast", "--package", "gdb-minimal", "-o"])
        .arg(&run)
        .args(["--share", &format!("{}:/test", share.display()), "--", "sh", "/test/guest.sh"])
        .output()
        .expect("kprism runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(section(&text, "memory").starts_with("$1 = 1\n"), "{text}");
    assert!(section(&text, "memory").contains("<kgtp_write>:"), "{text}");
    let kinds = [("dynamic", "tracepoint"), ("static", "static marker tracepoint")];
    for (kind, shown) in kinds {
        let none = section(&text, &format!("{kind} false"));
        assert!(none.contains("Collected 0 trace frames."), "{text}");
        assert!(none.contains(shown) && !none.contains("already hit"), "{text}");
        let all = section(&text, &format!("{kind} expression"));
        assert!(all.contains("Collected 1000 trace frames."), "{text}");
        // The thousandth call's: 2 * 1000 + 3 * 999.
        assert!(all.contains("2*counter1+3*counter2 = 4997\n"), "{text}");
        let both = section(&text, &format!("{kind} both"));
        assert!(both.contains("Collected 10 trace frames."), "{text}");
        let values: Vec<i64> = numbers_after(both, "2*counter1+3*counter2 = ").collect();
        assert_eq!(values, (1..=10).map(|n| 500 * n - 3).collect::<Vec<_>>(), "{text}");
    }
    // Three thousand calls before and the counter's first value: each call counts after the tracepoint.
    let both = section(&text, "dynamic both");
    let counters: Vec<i64> = numbers_after(both, "kgtp_counter = ").collect();
    assert_eq!(counters, (1..=10).map(|n| 2000 + 100 * n).collect::<Vec<_>>(), "{text}");
    let markers = section(&text, "static markers");
    assert!(
        markers.contains("kgtp_module_event ") && markers.contains("in __traceiter_kgtp_module_event at"),
        "{text}"
    );
    let listed = markers
        .lines()
        .find(|line| line.contains("kgtp:kgtp_module_event@kgtp_test_function "))
        .expect("a place");
    assert!(listed.contains(" in kgtp_test_function at "), "{text}");
    assert!(markers.contains("Data: \"locals of kgtp_write\""), "{text}");
    let both = section(&text, "static both");
    for n in 1..=10 {
        let own = format!("$_sdata = \"counter1={} counter2={}\"\n", 100 * n, 100 * n - 1);
        assert!(both.contains(&own), "{own}{text}");
    }
    // The same calls at the tracepoint's place in kgtp_test_function: its parameters as its DWARF has them there. Three
    // thousand calls more than in the dynamic session precede them; this place is behind the increment.
    let place = section(&text, "place both");
    assert!(place.contains("kgtp.c:16\n"), "{text}");
    assert!(place.contains("Collected 10 trace frames."), "{text}");
    let values = |name: &str| numbers_after(place, name).collect::<Vec<i64>>();
    assert_eq!(values("counter1 = "), (1..=10).map(|n| 100 * n).collect::<Vec<_>>(), "{text}");
    assert_eq!(values("counter2 = "), (1..=10).map(|n| 100 * n - 1).collect::<Vec<_>>(), "{text}");
    assert_eq!(values("kgtp_counter = "), (1..=10).map(|n| 6001 + 100 * n).collect::<Vec<_>>(), "{text}");
    // Locals that the tracepoint does not have; its own record tells the one that it has.
    let place = section(&text, "place locals");
    let rounds = [249, 499, 749, 999];
    let wanted: Vec<String> = rounds.iter().map(|i| format!("> {i} 1000 {} {i} 5 1", i + 1)).collect();
    assert_eq!(place.lines().filter(|line| line.starts_with("> ")).collect::<Vec<_>>(), wanted, "{text}");
    let own = rounds.map(|i| format!("$_sdata = \"round={i}\""));
    assert_eq!(place.lines().filter(|line| line.starts_with("$_sdata")).collect::<Vec<_>>(), own, "{text}");
    assert!(text.contains("$_sdata: the marker kgtp_round has it (strace -m kgtp_round)"), "{text}");
    // What is said to GDB, and by the server itself.
    let counts = "module kgtp: 2 of 2 places of tracepoints are markers";
    assert!(text.matches(counts).count() == 2 && section(&text, "said").contains(counts), "{text}");
    let kernel = section(&text, "kernel");
    assert!(kernel.contains("Collected 20 trace frames."), "{text}");
    assert!(kernel.contains(" = 7\n") && kernel.contains(" = 1\n"), "{text}");
    assert!(!kernel.contains("int3"), "{text}");
    assert!(section(&text, "during").contains("vfs_write"), "{text}");
    assert!(!section(&text, "after").contains("vfs_write"), "{text}");
}

kprism_test::main!();
