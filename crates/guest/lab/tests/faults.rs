// SPDX-License-Identifier: MIT OR Apache-2.0
//! Error messages when something is missing. No guest is started; nothing is downloaded.

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_test::{APT, GCC, needs, test};

/// Runs `labrun true` with an empty cache and changes to its environment. Returns its error text.
fn complaint(name: &str, changes: &[(&str, &Path)]) -> String {
    let scratch = scratch(name);
    let mut command = Command::new(labrun());
    command
        .env("XDG_CACHE_HOME", scratch.join("cache"))
        .env("KPRISM_QEMU", script(&scratch, "new", "10.0.2"));
    // The stand-in for the agent is read only after all steps that fail here.
    command.env("KPRISM_AGENT", "/bin/true").envs(changes.iter().copied());
    command.arg("--out").arg(scratch.join("out")).args(["--", "true"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    std::fs::remove_dir_all(scratch).unwrap();
    String::from_utf8(output.stderr).unwrap()
}

fn labrun() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let labrun = own.parent().and_then(Path::parent).unwrap().join("examples/labrun");
    assert!(labrun.exists(), "{} is not built: run `cargo build --examples`", labrun.display());
    labrun
}

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("kprism-faults-{name}-{}", std::process::id()));
    std::fs::remove_dir_all(&path).ok();
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A program that reports itself as QEMU of some version.
fn script(folder: &Path, name: &str, version: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\necho 'QEMU emulator version {version} (Debian)'\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
}

#[test]
fn no_qemu() {
    let text = complaint("qemu", &[("KPRISM_QEMU", Path::new("/no/such/qemu"))]);
    assert_says(&text, &["/no/such/qemu not found", "9.2 to 11.0", "KPRISM_QEMU"]);
}

#[test]
fn an_old_qemu() {
    let folder = scratch("old-script");
    let old = script(&folder, "old", "7.2.17");
    assert_says(&complaint("old", &[("KPRISM_QEMU", &old)]), &["7.2.17", "too old, 9.2 to 11.0"]);
    // 9.1 cannot read the guest's memory.
    let old = script(&folder, "almost", "9.1.2");
    assert_says(&complaint("almost", &[("KPRISM_QEMU", &old)]), &["9.1.2", "too old, 9.2 to 11.0"]);
    // 11.1 calls plugins in another way.
    let new = script(&folder, "new", "11.1.3");
    assert_says(
        &complaint("new", &[("KPRISM_QEMU", &new)]),
        &["11.1.3", "too new, 9.2 to 11.0", "version 7"],
    );
    std::fs::remove_dir_all(folder).unwrap();
}

/// A program that prints the right version, but exports none of QEMU's plugin functions.
#[test]
fn a_qemu_without_plugins() {
    needs(&[GCC]);
    let folder = scratch("plain-program");
    let (source, plain) = (folder.join("plain.c"), folder.join("plain"));
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { puts(\"QEMU emulator version 10.0.2\"); }\n",
    )
    .unwrap();
    assert!(Command::new("gcc").args([&source, Path::new("-o"), &plain]).status().unwrap().success());
    let text = complaint("plain", &[("KPRISM_QEMU", &plain)]);
    assert_says(&text, &["10.0.2 is built without TCG plugins", "9.2 to 11.0", "KPRISM_QEMU"]);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Each QEMU found is named with its reason; the one that fits is found behind one that does not.
#[test]
fn every_qemu_is_looked_at() {
    let folder = scratch("places");
    let places = ["first", "home/.local/bin"].map(|place| folder.join(place));
    for (place, version) in places.iter().zip(["7.2.17", "8.2.2"]) {
        std::fs::create_dir_all(place).unwrap();
        script(place, "qemu-system-x86_64", version);
    }
    let mut all = places[0].clone().into_os_string();
    all.push(":");
    all.push(Path::new("/no/such/folder"));
    let output = Command::new(labrun())
        .env_remove("KPRISM_QEMU")
        .env("PATH", all)
        .env("HOME", folder.join("home"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .env("KPRISM_AGENT", "/no/such/agent")
        .arg("--out")
        .arg(folder.join("out"))
        .args(["--", "true"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    match ["/usr/bin", "/usr/local/bin"]
        .iter()
        .any(|place| Path::new(place).join("qemu-system-x86_64").exists())
    {
        // This machine's own fits, in a folder that is not in PATH: what is missing next is said.
        true => assert_says(&text, &["kprism-agent not found"]),
        false => {
            assert_says(&text, &["no QEMU here fits", "7.2.17 (Debian) is too old", ".local/bin", "8.2.2"])
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_agent() {
    let text = complaint("agent", &[("KPRISM_AGENT", Path::new("/no/such/agent"))]);
    assert_says(
        &text,
        &[
            "kprism-agent not found",
            "cargo build --release",
            "unpack or install kprism whole",
            "KPRISM_AGENT",
        ],
    );
}

#[test]
fn no_apt() {
    // The QEMU script needs only /bin/sh, by its full path.
    let text = complaint("apt", &[("PATH", Path::new("/no/such/folder"))]);
    assert_says(&text, &["apt-cache not found", "--guest-image FILE", "--kernel or --tree"]);
}

#[test]
fn no_network() {
    needs(&[APT]);
    let folder = scratch("network-config");
    let config = folder.join("apt.conf");
    let lines =
        "Acquire::http::Proxy \"http://127.0.0.1:9\";\nAcquire::https::Proxy \"http://127.0.0.1:9\";\n";
    std::fs::write(&config, lines).unwrap();
    let text = complaint("network", &[("APT_CONFIG", &config)]);
    assert_says(
        &text,
        &["apt cannot provide linux-image-6.12", "Remedy: check the network", "apt-get update"],
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_backports() {
    needs(&[APT]);
    let folder = scratch("sources");
    let config = folder.join("apt.conf");
    let state = folder.join("state");
    std::fs::create_dir_all(state.join("lists/partial")).unwrap();
    let lines = format!(
        "Dir::State::lists \"{0}/lists\";\nDir::State::status \"/dev/null\";\nDir::Cache \"{0}/cache\";\n",
        state.display()
    );
    std::fs::write(&config, lines).unwrap();
    let text = complaint("backports", &[("APT_CONFIG", &config)]);
    assert_says(&text, &["no such package", "bookworm-backports", "scripts/setup.sh"]);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_place_for_a_cache() {
    let text = complaint("cache", &[("XDG_CACHE_HOME", Path::new("/proc/nowhere"))]);
    assert_says(&text, &["create /proc/nowhere/kprism"]);
}

kprism_test::main!();
