// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest from a guest image, on a machine without apt; a guest with a network; what a run tells of its guest.

mod guest;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use guest::{alone, json, ok, text};
use kprism_test::{APT, QEMU, needs, test};

/// Runs kprism where QEMU is the only other program, with a cache of its own.
fn without_apt(folder: &Path, arguments: &[&str]) -> Output {
    let path = folder.join("path");
    if !path.exists() {
        fs::create_dir(&path).unwrap();
        let found = Command::new("sh").args(["-c", "command -v qemu-system-x86_64"]).output().unwrap();
        let qemu = String::from_utf8(found.stdout).unwrap();
        std::os::unix::fs::symlink(qemu.trim(), path.join("qemu-system-x86_64")).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(arguments)
        .env("PATH", &path)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env_remove("KPRISM_GUEST_IMAGE")
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_guest_image_is_the_same_guest_without_apt() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (image, again, run, other) = (path("guest.tar"), path("again.tar"), path("run"), path("other"));
    for image in [&image, &again] {
        ok(&["lab", "save-guest", "-q", text(image)]);
    }
    assert!(fs::read(&image).unwrap() == fs::read(&again).unwrap(), "the same guest gives the same image");

    // Without an image, the error says what to do.
    let command = ["lab", "run", "-q", "-o", text(&other), "--", "ls", "/bin"];
    let refused = without_apt(dir.path(), &command);
    assert_eq!(refused.status.code(), Some(125));
    assert!(said(&refused).contains("--guest-image"), "{}", said(&refused));

    let with_image =
        ["lab", "run", "-q", "-o", text(&other), "--guest-image", text(&image), "--", "ls", "/bin"];
    let ran = without_apt(dir.path(), &with_image);
    assert!(ran.status.success(), "{}", said(&ran));
    let output = ok(&["lab", "run", "-q", "-o", text(&run), "--", "ls", "/bin"]);
    assert_eq!(output, ran.stdout);
    let diff = String::from_utf8(ok(&["diff", "-q", text(&run), text(&other)])).unwrap();
    for file in ["cpu0.pt", "sideband.jsonl"] {
        let bytes = |run: &Path| fs::read(run.join("streams").join(file)).unwrap();
        assert!(bytes(&run) == bytes(&other), "{file} differs\n{diff}");
    }
    let environment = |run: &Path| json(&["info", "--json", "-i", text(run)])["environment"]["id"].clone();
    assert!(environment(&run).is_string());
    assert_eq!(environment(&run), environment(&other));

    // What an image cannot give is refused, with the image that would.
    let refused = without_apt(
        dir.path(),
        &[
            "lab",
            "run",
            "--guest-image",
            text(&image),
            "--package",
            "strace",
            "-o",
            text(&other),
            "--",
            "true",
        ],
    );
    assert!(said(&refused).contains("lacks the packages strace"), "{}", said(&refused));

    // A bit of a layer is another one: the image is not used.
    let mut bytes = fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&again, bytes).unwrap();
    fs::remove_dir_all(path("cache")).unwrap();
    let refused = without_apt(
        dir.path(),
        &["lab", "run", "--guest-image", text(&again), "-o", text(&other), "--", "true"],
    );
    assert!(said(&refused).contains("is damaged"), "{}", said(&refused));
}

#[test]
fn a_server_in_the_guest_answers() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // A port that is free, as far as can be known before QEMU takes it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let forward = format!("{port}:80");
    let serve = "mkdir /tmp/w; echo from-the-guest > /tmp/w/a; busybox httpd -f -p 80 -h /tmp/w";
    let mut child = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["lab", "run", "-q", "--net", "user", "--port", &forward, "--timeout", "120", "-o", text(&run)])
        .args(["--", "sh", "-c", serve])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let mut answer = String::new();
    while !answer.contains("from-the-guest") && start.elapsed() < Duration::from_secs(100) {
        assert!(child.try_wait().unwrap().is_none(), "the run ended by itself");
        std::thread::sleep(Duration::from_millis(300));
        answer.clear();
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        if stream.write_all(b"GET /a HTTP/1.0\r\n\r\n").is_ok() {
            stream.read_to_string(&mut answer).ok();
        }
    }
    // SAFETY: a signal to a child that has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(answer.contains("from-the-guest"), "{answer}");

    // What was recorded can be read, and says that it is not reproducible.
    ok(&["report", "syscalls", "-q", "-i", text(&run)]);
    let info = json(&["info", "--json", "-i", text(&run)]);
    assert!(info["environment"].is_null());
    assert!(info["notes"].to_string().contains("--net"), "{info}");
}

/// A script that is not on the command line sets the mode of huge pages: the calls of the run tell.
#[test]
fn a_script_that_sets_the_mode_of_huge_pages_is_told() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    fs::write(dir.path().join("set.sh"), format!("echo never > {file}\n")).unwrap();
    let lab = ["lab", "run", "-q", "-o", text(&run), "--share", text(dir.path())];
    ok(&[&lab[..], &["--", "sh", "/share/set.sh"]].concat());
    let info = String::from_utf8(ok(&["info", "-i", text(&run)])).unwrap();
    assert!(info.contains("before the command, which may have set another: `enabled_store` ran"), "{info}");
    let told = json(&["info", "--json", "-i", text(&run)])["guest"].to_string();
    assert!(!told.contains("\"huge_pages\""), "{told}");
}

/// Syncs and the mode of huge pages that a run states are those of the guest, and the run stays whole.
#[test]
fn a_run_tells_what_its_guest_is_not() {
    needs(&[QEMU, APT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // The kernel's file by a pattern: of a command that names it nobody knows whether it changes the mode.
    let script =
        "dd if=/dev/zero of=f bs=4k count=1 conv=fsync && sync && cat /sys/kernel/mm/transp*/enabled";
    let stdout = ok(&["lab", "run", "-q", "-o", text(&run), "--", "sh", "-c", script]);

    let stdout = String::from_utf8(stdout).unwrap();
    let (_, mode) = stdout.split_once('[').expect("a mode in brackets");
    let info = json(&["info", "--json", "-i", text(&run)]);
    assert_eq!(info["huge_pages"]["guest"], mode.split_once(']').unwrap().0, "{}", info["huge_pages"]);

    let report = json(&["report", "syscalls", "--json", "-i", text(&run)]);
    let told = report["run"]["guest"].as_array().expect("conditions of a guest");
    let files = told.iter().find(|one| one["what"] == "files_in_memory").expect("syncs were made");
    assert_eq!(files["numbers"], serde_json::json!({"fsync": 1, "sync": 1}));
    assert!(told.iter().any(|one| one["what"] == "time_is_work"), "{told:?}");
    assert!(told.iter().all(|one| one["what"] != "cpus_take_turns"), "{told:?}");

    let shown = String::from_utf8(ok(&["report", "syscalls", "-i", text(&run)])).unwrap();
    assert!(shown.contains("files are in memory: 1 fsync, 1 sync took no time of a disk\n"), "{shown}");
    ok(&["info", "--strict", "-q", "-i", text(&run)]);
}

kprism_test::main!();
