// SPDX-License-Identifier: MIT OR Apache-2.0
//! GDB at a static tracepoint's place in the kernel's own code, with locals of the function around it: a session in the
//! guest with its kernel's debug information. Three others tell what GDB should find: the program that makes the calls,
//! ftrace, and kprism's own probe.

mod gdb;

use std::fs;
use std::path::Path;
use std::process::Command;

use gdb::{FOLDER, section};
use kprism_test::{GCC, QEMU, cache, needs, skip, test};

fn ok(command: &mut Command) -> String {
    let output = command.output().expect("a program");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn locals_around_a_tracepoint_of_the_kernel_itself() {
    needs(&[QEMU, GCC]);
    let dir = tempfile::tempdir().unwrap();
    let (share, run) = (dir.path().join("share"), dir.path().join("run"));
    let kprism = || Command::new(env!("CARGO_BIN_EXE_kprism"));
    let release =
        ok(kprism().args(["-q", "lab", "run", "--unobserved", "-o"]).arg(&run).args(["--", "uname", "-r"]));
    let image = cache().join("debug").join(format!("vmlinux-{}", release.trim()));
    if !image.is_file() {
        skip("needs the guest kernel's debug information: sh scripts/vmlinux.sh fetches it (1 GB)");
    }
    fs::create_dir(&share).unwrap();
    fs::copy(&image, share.join("vmlinux")).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_kprism"), share.join("kprism")).unwrap();
    for name in ["vmlinux.sh", "vmlinux.gdb"] {
        fs::copy(Path::new(FOLDER).join(name), share.join(name)).unwrap();
    }
    ok(Command::new("gcc")
        .args(["-O1", "-static", "-o"])
        .arg(share.join("forks"))
        .arg(Path::new(FOLDER).join("forks.c")));
    let place = "sched:sched_process_fork@kernel_clone if clone_flags & 0x4000";
    ok(kprism()
        .args(["compile", place, "--collect", "p->pid,clone_flags,args->exit_signal", "-k"])
        .arg(&image)
        .arg("-o")
        .arg(share.join("probes")));
    let text = ok(kprism()
        .args(["lab", "run", "-q", "--unobserved", "--fast", "--mem", "3G", "--package", "gdb-minimal", "-o"])
        .arg(&run)
        .args(["--share", &format!("{}:/test", share.display()), "--", "sh", "/test/vmlinux.sh"]));
    // The children that shared their parent's memory, by the program.
    let lines = section(&text, "program").lines();
    let children: Vec<&str> = lines.filter_map(|line| line.strip_prefix("child ")).collect();
    assert_eq!(children.len(), 10, "{text}");
    // GDB. The child has its parent's name.
    let frames: Vec<&str> =
        section(&text, "frames").lines().filter_map(|line| line.strip_prefix("> ")).collect();
    let wanted: Vec<String> = children.iter().map(|child| format!("{child} forks 0x4100 17 1")).collect();
    assert_eq!(frames, wanted, "{text}");
    assert!(section(&text, "status").contains("Collected 10 trace frames."), "{text}");
    // kprism's own probe.
    let records = section(&text, "probe").lines().map(|line| {
        let record: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {text}"));
        let value = |name: &str| record["values"][name].to_string();
        assert_eq!([value("clone_flags"), value("args->exit_signal")], ["16640", "17"], "{text}");
        value("p->pid")
    });
    assert_eq!(records.collect::<Vec<_>>(), children, "{text}");
    // ftrace has both kinds: twenty.
    let traced: Vec<&str> = section(&text, "ftrace")
        .lines()
        .filter_map(|line| line.rsplit_once("child_pid=").map(|(_, pid)| pid.trim()))
        .collect();
    assert_eq!(traced.iter().copied().skip(1).step_by(2).collect::<Vec<_>>(), children, "{text}");
    assert_eq!(traced.len(), 20, "{text}");
    let said = section(&text, "said");
    assert!(said.contains("the kernel: ") && said.contains("places of tracepoints are markers"), "{text}");
    assert!(section(&text, "none").contains("No known static tracepoint marker"), "{text}");
}

kprism_test::main!();
