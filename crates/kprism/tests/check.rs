// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism check` loads each plugin in its QEMU, and says what helps where one is refused.

use std::path::Path;
use std::process::Command;

use kprism_test::{USER_PLUGINS, needs, test};
use serde_json::Value;

/// What is said of one thing, with a variable set for the program.
fn item(name: &str, variable: Option<(&str, &Path)>) -> (String, String, String) {
    let mut check = Command::new(env!("CARGO_BIN_EXE_kprism"));
    check.args(["check", "--json"]).envs(variable);
    let items: Value = serde_json::from_slice(&check.output().unwrap().stdout).expect("JSON");
    let item = items.as_array().unwrap().iter().find(|item| item["name"] == name).expect("it is listed");
    let text = |key: &str| item[key].as_str().unwrap().to_owned();
    (text("state"), text("found"), text("remedy"))
}

fn built(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_BIN_EXE_kprism")).with_file_name(file)
}

#[test]
fn the_observer_loads_and_a_stranger_does_not() {
    let (state, found, remedy) = item("observer plugin", None);
    assert!(state == "ok" && found.contains(" loads in ") && remedy.is_empty(), "{state}: {found}");
    let (state, found, remedy) =
        item("observer plugin", Some(("KPRISM_OBSERVER", &built("libkprism_user.so"))));
    assert_eq!(state, "missing");
    assert!(
        found.contains("Could not load plugin") && remedy.contains("QEMU 9.2 to 11.0"),
        "{found}: {remedy}"
    );
}

#[test]
fn the_plugin_for_programs_loads() {
    needs(&[USER_PLUGINS]);
    let (state, found, _) = item("user plugin", None);
    assert!(state == "ok" && found.contains("libkprism_user.so loads in "), "{state}: {found}");
    let (state, found, _) =
        item("user plugin", Some(("KPRISM_USER_PLUGIN", &built("libkprism_observer.so"))));
    assert!(state == "optional" && found.contains("refuses"), "{state}: {found}");
}

/// As Debian's own qemu-x86_64 is from QEMU 9 on: it starts, and takes no plugins.
#[test]
fn a_qemu_without_plugins_is_told_with_the_remedy() {
    let (state, _, remedy) = item("user plugin", Some(("KPRISM_QEMU_USER", Path::new("/bin/true"))));
    assert_eq!(state, "optional");
    assert!(remedy.contains("takes no plugins: scripts/qemu-user.sh"), "{remedy}");
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kprism"))
        .args(["record", "tlb", "--method", "user", "-o"])
        .arg(folder.path().join("run"))
        .args(["--", "true"])
        .env("KPRISM_QEMU_USER", "/bin/true")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("scripts/qemu-user.sh"), "{said}");
    assert!(!folder.path().join("run").exists());
}

kprism_test::main!();
