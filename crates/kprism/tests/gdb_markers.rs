// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static tracepoints of programs (USDT) as GDB's markers, in sessions of the real GDB: a program built here, whose values
//! are known, and stripped ones of the distribution.

mod gdb;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gdb::{FOLDER, PATIENCE, Running, Server, allowed, built, section};
use kprism_test::{SDT, needs, skip, test, until};

/// The number of frames, as `tstatus` has it.
fn frames(text: &str) -> u32 {
    let count = text.split("Collected ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{text}"))
}

/// The markers of a program, as GDB lists them. Then it may go.
fn markers(dir: &Path, program: &Path) -> String {
    let server = Server::start(dir, &["--exec", program.to_str().unwrap()], &[], Stdio::null());
    let text = server.gdb(Some(program), "info static-tracepoint-markers\nkill\n");
    until(PATIENCE, "the server stays", || !server.socket.exists());
    text
}

/// The arguments of a marker, as `info static-tracepoint-markers` has them.
fn arguments(text: &str, marker: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.split_whitespace().nth(1) == Some(marker));
    let data = at.and_then(|at| lines[at + 1..].iter().find(|line| line.trim().starts_with("Data: ")));
    let data = data.unwrap_or_else(|| panic!("no {marker}: {text}")).trim().trim_end_matches('"');
    data.split_once(": \"")
        .and_then(|(_, data)| data.split_once(": "))
        .map_or_else(Vec::new, |(_, all)| all.split(", ").map(str::to_owned).collect())
}

/// The program with markers.
fn marked(dir: &Path, flags: &[&str]) -> PathBuf {
    built(dir, &Path::new(FOLDER).join("usdt.c"), flags)
}

/// Address of a symbol in a program that is loaded where it is linked.
fn symbol(program: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm runs");
    let symbols = String::from_utf8(output.stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("the symbol");
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

/// A program's counter of listeners in memory.
fn listeners(pid: u32, address: u64) -> u16 {
    let mut bytes = [0; 2];
    fs::File::open(format!("/proc/{pid}/mem")).unwrap().read_exact_at(&mut bytes, address).unwrap();
    u16::from_le_bytes(bytes)
}

#[test]
fn markers_of_a_program_have_its_locals_and_arguments() {
    allowed();
    needs(&[SDT]);
    let dir = tempfile::tempdir().unwrap();
    for flags in [&["-O0"][..], &["-O2"], &["-O2", "-no-pie"]] {
        let program = marked(dir.path(), flags);
        let printed = dir.path().join("printed");
        let stdout = fs::File::create(&printed).unwrap().into();
        let text = markers(dir.path(), &program);
        assert!(text.contains("app:step ") && text.contains("in step at "), "{text}");
        let [table, name, small] = match &arguments(&text, "app:step")[..] {
            [n, table, name, small] => {
                assert!(n.starts_with("(int) $rdi") || n == "*(int *) ($rbp - 20)", "{text}");
                [table, name, small].map(String::clone)
            }
            _ => panic!("{text}"),
        };
        let server = Server::start(dir.path(), &["--exec", program.to_str().unwrap()], &[], stdout);
        let text = server.gdb(
            Some(&program),
            &format!(
                "strace -m app:step\n\
                 condition 1 square > 50 && n % 3 == 0 && {table} < 100\n\
                 actions\ncollect n, square, item->id, $_sdata, {table}, {name}, {small}\nend\n\
                 strace -m app:end\n\
                 actions\ncollect $_sdata\nend\n\
                 trace main\n\
                 actions\ncollect $_sdata\nend\n\
                 tstart\ncontinue\ntstop\ntstatus\n\
                 echo == frames\\n\n\
                 tfind start\n\
                 while $trace_frame != -1\n\
                 if $tracepoint == 1\n\
                 printf \"> %d %ld %d %d %#lx %d \", n, square, item->id, {table}, {name}, {small}\n\
                 output $_sdata\necho \\n\n\
                 else\noutput $_sdata\necho \\n\nend\n\
                 tfind\nend\n\
                 echo == end\\n\ncontinue\n"
            ),
        );
        assert!(text.contains("tracepoint 3 is not installed: $_sdata: only a static tracepoint"), "{text}");
        // All rounds saw a listener. What is kept is what the condition says, and the values are those that it printed.
        let printed = fs::read_to_string(&printed).unwrap();
        let rounds: Vec<Vec<&str>> = printed.lines().map(|line| line.split(' ').collect()).collect();
        assert!(rounds.len() == 20 && rounds.iter().all(|round| round[5] == "1"), "{printed}");
        let number = |text: &str| text.parse::<i64>().unwrap();
        let kept = rounds.iter().filter(|round| number(round[1]) > 50 && number(round[0]) % 3 == 0);
        let mut wanted: Vec<String> = kept
            .map(|round| {
                let [n, square, table, name, small] = [0, 1, 2, 3, 4].map(|at| round[at]);
                format!(
                    "> {n} {square} 3 {table} {name} {small} \"arg1={n} arg2={table} arg3={name} arg4={small}\""
                )
            })
            .collect();
        assert_eq!(wanted.len(), 4);
        let total: i64 = rounds.iter().map(|round| number(round[1])).sum();
        wanted.push(format!("\"arg1={total} arg2={}\"", total as i8));
        let frames = section(&text, "frames").lines().filter(|line| line.contains("arg1="));
        assert_eq!(frames.collect::<Vec<_>>(), wanted, "{flags:?}: {text}");
    }
}

/// Counted for the traced process only, while a tracepoint is on, however it was set; also when the server is killed.
#[test]
fn the_counter_of_listeners_goes_up_and_down() {
    allowed();
    needs(&[SDT]);
    let dir = tempfile::tempdir().unwrap();
    let program = marked(dir.path(), &["-O2", "-no-pie"]);
    let start = || Running(Command::new(&program).args(["1000000", "1000"]).spawn().unwrap());
    let (target, other) = (start(), start());
    let (pid, other) = (target.0.id(), other.0.id());
    let address = symbol(&program, "app_step_semaphore");
    until(PATIENCE, "the programs do not start", || {
        [pid, other]
            .iter()
            .all(|pid| fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"usdt\n"))
    });
    let mut server = Server::start(dir.path(), &["--pid", &pid.to_string()], &[], Stdio::null());
    assert_eq!(listeners(pid, address), 0);
    let counter = |pid: u32| {
        let word = address / 2;
        format!("shell dd if=/proc/{pid}/mem bs=2 skip={word} count=1 status=none | od -An -tu2\n")
    };
    // A marker, and GDB's own way to the same place. GDB then writes the counter itself, which is refused.
    for how in
        ["strace -m app:step", "trace -probe-stap app:step", "strace -m app:step\ntrace -probe-stap app:step"]
    {
        let text = server.gdb(
            Some(&program),
            &format!(
                "delete\n{how}\ntstart\nshell sleep 1\necho == during\\n\n{}{}tstop\necho == after\\n\n{}tstatus\n",
                counter(pid),
                counter(other),
                counter(pid)
            ),
        );
        let counted: Vec<&str> = section(&text, "during").split_whitespace().collect();
        assert_eq!(counted, ["1", "0"], "{how}: {text}");
        assert!(section(&text, "after").starts_with("     0\n"), "{how}: {text}");
        assert!(frames(&text) > 50, "{how}: {text}");
    }
    let text = server.gdb(Some(&program), "set disconnected-tracing on\nstrace -m app:step\ntstart\n");
    assert_eq!(listeners(pid, address), 1, "{text}");
    // GDB 13 would end the connection if it were told of them; they go on.
    let text = server.gdb(Some(&program), "info tracepoints\ntstatus\nmonitor status\n");
    assert!(text.contains("No tracepoints.") && text.contains("Trace is running on the target."), "{text}");
    assert!(text.contains("tracepoint 1 at ") && !text.contains(" 0 frames"), "{text}");
    assert_eq!(listeners(pid, address), 1, "{text}");
    server.process.0.kill().unwrap();
    server.process.0.wait().unwrap();
    until(PATIENCE, "the counter stays", || listeners(pid, address) == 0);
}

/// The distribution's Python, stripped: its markers tell which functions of a program return, by name and line.
#[test]
fn markers_of_a_stripped_program() {
    allowed();
    let python = Path::new("/usr/bin/python3.11");
    let notes = Command::new("readelf").args(["-n", "/usr/bin/python3.11"]).output();
    if !notes.is_ok_and(|notes| String::from_utf8_lossy(&notes.stdout).contains("function__return")) {
        skip("needs a Python with static tracepoints: Debian 12's python3.11");
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("calls.py");
    fs::write(&script, "def inner(n):\n    return n\n\ndef outer(n):\n    return inner(n) + 1\n\nfor n in range(10):\n    outer(n)\n").unwrap();
    let text = markers(dir.path(), python);
    let [file, function, line] = &arguments(&text, "python:function__return")[..] else { panic!("{text}") };
    let [file, function] = [file, function].map(|text| text.replace("unsigned long", "char *"));
    let server = Server::start(
        dir.path(),
        &["--exec", python.to_str().unwrap()],
        &["--", script.to_str().unwrap()],
        Stdio::null(),
    );
    let text = server.gdb(
        Some(python),
        &format!(
            "strace -m python:function__return\n\
             condition 1 {line} == 5 && *({function}) == 111\n\
             actions\ncollect/s {file}, {function}\ncollect $_sdata\nend\n\
             tstart\ncontinue\ntstop\ntstatus\n\
             echo == frames\\n\n\
             tfind start\n\
             while $trace_frame != -1\n\
             printf \"> %s %s\\n\", {file}, {function}\n\
             tfind\nend\n\
             echo == end\\n\ncontinue\n"
        ),
    );
    let wanted = format!("> {} outer", script.display());
    let frames = section(&text, "frames").lines().filter(|line| line.starts_with("> ")).collect::<Vec<_>>();
    assert_eq!(frames.iter().filter(|frame| **frame == wanted).count(), 10, "{text}");
}

/// Markers of a library: of a program that was just started, if it is held at its entry, and of one that runs.
#[test]
fn markers_of_a_library() {
    allowed();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("throws");
    let source = Path::new(FOLDER).join("throws.cc");
    let built = Command::new("g++").args(["-g", "-o"]).arg(&program).arg(source).status();
    match built {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(_) => skip("needs g++: sh scripts/setup.sh test"),
    }
    let server = |args: &[&str], then: &[&str]| Server::start(dir.path(), args, then, Stdio::null());
    let name = program.to_str().unwrap();
    let started = server(&["--exec", name, "--at-entry"], &["--", "10"]);
    let text = started.gdb(
        Some(&program),
        "strace -m libstdcxx:throw\n\
         actions\ncollect $_sdata, $_probe_arg0\nend\n\
         tstart\ncontinue\ntstop\ntstatus\n\
         tfind tracepoint 1\necho >\noutput $_sdata\nprintf \" %#lx\\n\", $_probe_arg0\n\
         tfind none\ncontinue\n",
    );
    assert_eq!(frames(&text), 10, "{text}");
    let line = text.lines().find(|line| line.starts_with(">\"")).unwrap_or_else(|| panic!("{text}"));
    let (data, own) = line.rsplit_once(' ').unwrap();
    assert!(data.contains(&format!("arg1={own} arg2=0x")), "{text}");
    assert!(text.contains("exited normally"), "{text}");
    until(PATIENCE, "the server stays", || !started.socket.exists());
    // Without --at-entry its libraries are not there yet.
    let held = server(&["--exec", name], &["--", "10"]);
    let text = held.gdb(Some(&program), "strace -m libstdcxx:throw\nkill\n");
    assert!(text.contains("No known static tracepoint marker"), "{text}");
    drop(held);
    fs::remove_file(dir.path().join("socket")).ok();
    let target = Running(Command::new(&program).args(["100000000", "1000"]).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(200));
    let attached = server(&["--pid", &target.0.id().to_string()], &[]);
    let text = attached.gdb(
        Some(&program),
        "strace -m libstdcxx:throw\ntstart\nshell sleep 1\ntstop\ntstatus\ninfo static-tracepoint-markers\n",
    );
    assert!(frames(&text) > 50, "{text}");
    assert!(text.contains("libstdc++.so.6.") && text.contains(": (unsigned long) $rdi"), "{text}");
}

kprism_test::main!();
