// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--root` and `--disk`: disk images of the user's in the guest. One of them boots systemd from ext4, by the lab and by
//! `kprism observe`; a program of which all system calls are known runs there as it does in the lab's own guest.

mod guest;
mod judge;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, kprism, number, ok, text};
use kprism_test::{APT, PTORACLE, QEMU, SYSTEMD_IMAGE, cache, needs, test, turn};
use serde_json::Value;

const WORK: &str = "kprism-work";

fn image(file: &str) -> PathBuf {
    cache().join("tools/systemd-image").join(file)
}

/// System calls of the program, as its source has them (`scripts/systemd-image/work.c`); those of its start-up are the C
/// library's.
const CALLS: [(&str, u64); 7] = [
    ("getppid", 100),
    ("openat", 20),
    ("newfstatat", 20),
    ("read", 20 * 4 + 30),
    ("close", 20),
    ("pipe2", 1),
    ("write", 30),
];

/// The rows of a report of the program's system calls.
fn rows(run: &Path, options: &[&str]) -> Vec<Value> {
    let line = ["report", "syscalls", "--comm", WORK, "--json", "--limit", "0", "-q", "-i", text(run)];
    let report = json(&[&line[..], options].concat());
    report["rows"].as_array().unwrap_or_else(|| panic!("{report}")).clone()
}

fn name(row: &Value) -> String {
    row["syscall"].as_str().unwrap_or_else(|| panic!("{row}")).to_owned()
}

/// Number of the program's calls of each system call, without those that start it: a shell or a service manager made some of
/// them.
fn counts(run: &Path) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<_, _> =
        rows(run, &[]).iter().map(|row| (name(row), number(row, "count"))).collect();
    counts.remove("execve");
    // glibc asks for a file's state by `newfstatat`, and from 2.41 on by `fstat`.
    if let Some(count) = counts.remove("fstat") {
        *counts.entry("newfstatat".to_owned()).or_default() += count;
    }
    counts
}

/// Kernel instructions of a call of each system call up to the end of its body, on average. Interrupts come when they
/// will, and leave work for the way back to user code. In the lab an instruction takes a nanosecond.
fn instructions(run: &Path) -> BTreeMap<String, u64> {
    let own = |row: &Value| number(row, "entry_ns") + number(row, "body_ns");
    rows(run, &["--parts"]).iter().map(|row| (name(row), own(row))).collect()
}

fn streams(run: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(run.join("streams"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn a_program_on_an_image_with_systemd() {
    needs(&[QEMU, APT, PTORACLE, SYSTEMD_IMAGE]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let disk = image("disk.raw");
    let before = fs::metadata(&disk).unwrap().modified().unwrap();
    let oracle = judge::oracle();

    // Twice: equal to the byte, though systemd and its services run, and ext4 writes.
    let (run, again) = (path("run"), path("again"));
    for run in [&run, &again] {
        ok(&["lab", "run", "-q", "--root", text(&disk), "-o", text(run), "--", WORK]);
    }
    assert!(streams(&run) == streams(&again), "two runs differ");
    assert_eq!(fs::metadata(&disk).unwrap().modified().unwrap(), before, "the image is not written to");
    judge::compare(&run, &oracle);
    let info = json(&["info", "--json", "-i", text(&run)]);
    assert_eq!((&info["decode_errors"], &info["lost_bytes"]), (&0.into(), &0.into()), "{info}");
    let said = ok(&[
        "lab",
        "run",
        "-q",
        "--root",
        text(&disk),
        "--unobserved",
        "-o",
        text(&path("state")),
        "--",
        "sh",
        "-c",
        "systemctl is-system-running; findmnt -n -o FSTYPE /; cat /proc/1/comm",
    ]);
    assert_eq!(String::from_utf8_lossy(&said), "running\next4\nsystemd\n");

    // Beside an init the agent is a process like others.
    let state = path("state");
    for (command, why) in
        [("kill -9 $PPID", "agent in the guest ended"), ("systemctl poweroff", "powered off")]
    {
        let line = ["lab", "run", "--root", text(&disk), "--unobserved", "-o", text(&state), "--"];
        let output = kprism(&[&line[..], &["sh", "-c", &format!("{command}; sleep 1000")]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(why), "{command}: {said}");
    }

    // The program's file is fetched from the image, for its names.
    assert!(run.join("symbols/root/usr/local/bin").join(WORK).is_file());
    let functions =
        json(&["report", "functions", "--comm", WORK, "--json", "--limit", "0", "-q", "-i", text(&run)]);
    let rows = functions["rows"].as_array().unwrap();
    let has = |module: &str, name: &str| {
        rows.iter().any(|row| row["function"] == name && row["module"].as_str().unwrap().ends_with(module))
    };
    assert!(has(WORK, "main") && has("[ext4]", "ext4_file_read_iter"), "{functions}");

    // In the lab's own guest: the same system calls. Those that touch no file take the same instructions.
    let (share, plain) = (path("share"), path("plain"));
    fs::create_dir(&share).unwrap();
    fs::copy(run.join("symbols/root/usr/local/bin").join(WORK), share.join(WORK)).unwrap();
    fs::set_permissions(share.join(WORK), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(share.join("input"), [0; 10_000]).unwrap();
    let program = format!("/share/{WORK}");
    let place = "cp /share/input /etc/kprism-work";
    let line = ["lab", "run", "-q", "--share", text(&share), "--before", place, "-o", text(&plain), "--"];
    ok(&[&line[..], &[&program]].concat());
    assert_eq!(counts(&run), counts(&plain));
    let called = counts(&run);
    for (name, calls) in CALLS {
        assert_eq!(called[name], calls, "{name}");
    }
    let (with_systemd, alone) = (instructions(&run), instructions(&plain));
    for name in ["getppid", "rseq", "set_tid_address"] {
        assert_eq!(with_systemd[name], alone[name], "{name}");
    }
}

/// By QEMU's own command line: the image's own kernel, at a random address, from a virtio disk. systemd's start takes minutes.
#[test]
fn a_program_on_an_image_by_qemus_command_line() {
    needs(&[QEMU, APT, PTORACLE, SYSTEMD_IMAGE]);
    turn(3, 2);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (disk, oracle) = (image("disk.raw"), judge::oracle());
    let run = path("run");
    ok(&["lab", "run", "-q", "--root", text(&disk), "-o", text(&run), "--", WORK]);

    let observed = path("observed");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.args(["observe", "-q", "--process", WORK, "-o", text(&observed), "--", "qemu-system-x86_64"]);
    command.args(["-m", "1G", "-display", "none", "-nodefaults", "-no-reboot"]);
    // That one service and what it needs: on a busy machine others run into their limits again and again. With RDRAND the kernel
    // has random numbers that early, and the C library need not ask for the time instead.
    let words = format!("root=/dev/vda console=ttyS0 kprism.work systemd.unit={WORK}.service");
    command.args(["-cpu", "max", "-append", &words]);
    command.arg("-kernel").arg(image("vmlinuz")).arg("-initrd").arg(image("initrd.img"));
    command
        .arg("-drive")
        .arg(format!("file={},if=virtio,format=raw,snapshot=on", text(&disk)))
        .arg("-serial")
        .arg(format!("file:{}", text(&path("console"))));
    let output = command.output().unwrap();
    let console = fs::read(path("console")).unwrap_or_default();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&console)
    );
    judge::compare(&observed, &oracle);
    assert_eq!(counts(&observed), counts(&run));
}

#[test]
fn disks_are_read_and_kept_and_never_changed() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut contents = [vec![0; 3 << 20], vec![0; 5 << 20]];
    let disks = [path("one"), path("two,with a comma")];
    for (i, (disk, contents)) in disks.iter().zip(&mut contents).enumerate() {
        contents[..5].copy_from_slice(format!("disk{i}").as_bytes());
        fs::write(disk, contents).unwrap();
    }
    let run = path("run");
    let script = "for i in 0 1; do head -c 5 /dev/disk$i; echo; done; \
                  printf changed | dd of=/dev/disk1 conv=notrunc 2>/dev/null; head -c 7 /dev/disk1";
    let line = |keep: bool| {
        let mut line = vec!["lab", "run", "-q", "--unobserved", "-o", text(&run)];
        line.extend(disks.iter().flat_map(|disk| ["--disk", text(disk)]));
        line.extend(keep.then_some("--keep-disks"));
        line.extend(["--", "sh", "-c", script]);
        line
    };
    // What the first run wrote is gone in the second.
    for keep in [false, true] {
        assert_eq!(String::from_utf8_lossy(&ok(&line(keep))), "disk0\ndisk1\nchanged");
        assert_eq!(run.join("disks").exists(), keep);
    }
    assert!(fs::read(run.join("disks/disk1.raw")).unwrap().starts_with(b"changed"));
    for (disk, contents) in disks.iter().zip(&contents) {
        assert!(&fs::read(disk).unwrap() == contents, "{}", disk.display());
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["options"]["disk"][1], text(&disks[1]));
}

/// A folder, and a packed archive of it. No init is in them: the command runs alone.
#[test]
fn folders_and_archives() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    ok(&["lab", "prepare", "-q"]);
    let mut roots = fs::read_dir(cache().join("rootfs")).unwrap().map(|entry| entry.unwrap().path());
    let busybox =
        roots.find_map(|root| Some(root.join("root/usr/bin/busybox")).filter(|file| file.is_file()));
    let (root, run) = (path("root"), path("run"));
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(busybox.unwrap(), root.join("bin/busybox")).unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
    fs::write(root.join("file"), "of the user's").unwrap();
    fs::hard_link(root.join("file"), root.join("other")).unwrap();
    let archive = path("root.tar.xz");
    let mut tar = Command::new("tar");
    tar.args(["--owner=7", "--group=8", "-cJf"]).arg(&archive).arg("-C").arg(&root).arg(".");
    assert!(tar.status().unwrap().success());
    let script = "read line < /file; echo $line; set -- $(busybox ls -ln /file); echo $2 $3 $4";
    for (root, expected) in [(&root, "of the user's\n1 0 0\n"), (&archive, "of the user's\n2 7 8\n")] {
        let line = ["lab", "run", "-q", "--root", text(root), "-o", text(&run), "--", "sh", "-c", script];
        assert_eq!(String::from_utf8_lossy(&ok(&line)), expected, "{}", root.display());
        assert!(run.join("symbols/root/bin/busybox").is_file(), "the program is fetched from the guest");
    }
    fs::write(root.join("large"), vec![1; 100 << 20]).unwrap();
    let line = ["lab", "run", "--root", text(&root), "--mem", "300M", "-o", text(&run), "--", "sh"];
    let said = String::from_utf8_lossy(&kprism(&line).stderr).into_owned();
    assert!(said.contains("too large for a guest with 300 MiB") && said.contains("--mem 1024M"), "{said}");
}

#[test]
fn images_that_are_refused() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let refused = |name: &str, contents: &[u8], option: &str| {
        let file = dir.path().join(name);
        fs::write(&file, contents).unwrap();
        let output = kprism(&["lab", "run", option, text(&file), "-o", text(&run), "--", "true"]);
        assert_eq!(output.status.code(), Some(125));
        assert!(!run.exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let with = |at: usize, magic: &[u8]| {
        let mut bytes = vec![0; 4 << 20];
        bytes[at..at + magic.len()].copy_from_slice(magic);
        bytes
    };
    let said = refused("none", &with(0, b"text"), "--root");
    assert!(said.contains("no root file system on the disk:\n  disk0: no ext4, xfs or btrfs"), "{said}");
    let said = refused("luks", &with(0, b"LUKS\xba\xbe"), "--root");
    assert!(said.contains("encrypted (LUKS)"), "{said}");
    let said = refused("empty", b"", "--disk");
    assert!(said.contains("an empty disk image"), "{said}");
    let said = refused("damaged", &with(0x438, &[0x53, 0xef]), "--root");
    assert!(
        said.contains("ext4, Invalid argument") || said.contains("ext4, Structure needs cleaning"),
        "{said}"
    );
    let missing = kprism(&["lab", "run", "--disk", "/no/such/image", "-o", text(&run), "--", "true"]);
    assert_eq!(missing.status.code(), Some(125));
    let many = ["--disk", "/no/such/image"].repeat(9);
    let many = kprism(&[&["lab", "run"][..], &many, &["-o", text(&run), "--", "true"]].concat());
    let said = String::from_utf8_lossy(&many.stderr).into_owned();
    assert!(said.contains("keeps 8 disk images"), "{said}");
    let kept = kprism(&["lab", "run", "--keep-disks", "-o", text(&run), "--", "true"]);
    assert_eq!((kept.status.code(), run.exists()), (Some(125), false), "there are no disks");
    let init = kprism(&["lab", "run", "--init", "none", "--", "true"]);
    assert_eq!(init.status.code(), Some(2), "an init is that of a root");
}

kprism_test::main!();
