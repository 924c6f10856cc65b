// SPDX-License-Identifier: MIT OR Apache-2.0
//! `lab run --tree`: a kernel from the folder in which it was built, with its modules. The tree is that of the kernel with
//! gcov, which `make test` builds.

mod guest;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, json, kprism, ok, text};
use kprism_test::{GCOV_KERNEL, GIT, QEMU, needs, skip, test};
use serde_json::Value;

/// The tree.
fn tree() -> PathBuf {
    match std::env::var_os("KPRISM_GCOV_SOURCE") {
        Some(folder) => folder.into(),
        None => skip("no KPRISM_GCOV_SOURCE: make test has it"),
    }
}

fn manifest(run: &Path) -> Value {
    serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap()
}

/// A folder whose files are those of the tree, but for what a test changes.
fn copy(tree: &Path, to: &Path) {
    for entry in fs::read_dir(tree).unwrap().flatten() {
        let name = entry.file_name();
        if name != ".config" && name != "include" && name != ".git" {
            symlink(entry.path(), to.join(name)).unwrap();
        }
    }
    fs::copy(tree.join(".config"), to.join(".config")).unwrap();
}

/// The same instructions as with the image alone; modules by their names, with those that they need.
#[test]
fn a_tree_gives_its_kernel_and_its_modules() {
    needs(&[QEMU, GCOV_KERNEL]);
    let tree = tree();
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (by_tree, by_image) = (dir.path().join("tree"), dir.path().join("image"));
    let output = kprism(&["lab", "run", "--tree", text(&tree), "-o", text(&by_tree), "--", "ls", "/bin"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    // A small kernel: what it does not show is said.
    assert!(said.contains("built without CONFIG_DEBUG_INFO_BTF: not seen are names of tasks"), "{said}");
    let kernel = manifest(&by_tree)["kernel"].clone();
    assert_eq!(kernel["tree"]["folder"], text(&tree.canonicalize().unwrap()), "{kernel}");
    assert!(String::from_utf8_lossy(&ok(&["info", "-i", text(&by_tree)])).contains("built in"));

    let image = tree.join("arch/x86/boot/bzImage");
    ok(&["lab", "run", "-q", "--kernel", text(&image), "-o", text(&by_image), "--", "ls", "/bin"]);
    let count = |run: &Path| {
        let functions = json(&["report", "functions", "-q", "--json", "-i", text(run)]);
        (manifest(run)["instructions"].clone(), functions["functions"].clone())
    };
    let (instructions, functions) = count(&by_tree);
    assert!(instructions.as_u64().unwrap() > 100_000, "{instructions}");
    assert_eq!(count(&by_image), (instructions, functions));

    let modules = dir.path().join("modules");
    let tree_and_module = ["lab", "run", "-q", "--unobserved", "--tree", text(&tree), "--module", "minix"];
    let listed = ok(&[&tree_and_module[..], &["-o", text(&modules), "--", "cat", "/proc/modules"]].concat());
    assert!(String::from_utf8_lossy(&listed).starts_with("minix "), "{}", String::from_utf8_lossy(&listed));
    let missing = kprism(&["lab", "run", "--tree", text(&tree), "--module", "no_such", "--", "true"]);
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(!missing.status.success() && said.contains("no kernel module no_such"), "{said}");
}

/// Each of these is refused before anything boots.
#[test]
fn a_tree_that_cannot_run_is_refused_with_the_way_to_mend_it() {
    needs(&[QEMU, GCOV_KERNEL, GIT]);
    let tree = tree();
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, change: &dyn Fn(&Path)| {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        copy(&tree, &folder);
        change(&folder);
        let output = kprism(&[
            "lab",
            "run",
            "--tree",
            text(&folder),
            "-o",
            text(&dir.path().join("run")),
            "--",
            "true",
        ]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{name}: {said}");
        said
    };
    let without = |option: &'static str| {
        move |folder: &Path| {
            let config = fs::read_to_string(folder.join(".config")).unwrap();
            fs::write(folder.join(".config"), config.replace(&format!("{option}=y"), "")).unwrap();
        }
    };
    let said = refused("without an option", &without("CONFIG_BLK_DEV_INITRD"));
    assert!(said.contains("  CONFIG_BLK_DEV_INITRD=y\t# the guest's programs are an initramfs"), "{said}");
    let said = refused("not built", &|folder| fs::remove_file(folder.join("arch")).unwrap());
    assert!(said.contains("make bzImage"), "{said}");
    let said = refused("not configured", &|folder| fs::remove_file(folder.join(".config")).unwrap());
    assert!(said.contains("no .config"), "{said}");
    let said = refused("another release", &|folder| {
        fs::create_dir_all(folder.join("include/config")).unwrap();
        fs::write(folder.join("include/config/kernel.release"), "6.99.0\n").unwrap();
    });
    assert!(said.contains("6.99.0: run `make bzImage modules`"), "{said}");
    let said = refused("no image", &|folder| {
        fs::remove_file(folder.join("arch")).unwrap();
        fs::create_dir_all(folder.join("arch/x86/boot")).unwrap();
        fs::write(folder.join("arch/x86/boot/bzImage"), "garbage").unwrap();
    });
    assert!(said.contains("not a kernel image for x86"), "{said}");
    let output = kprism(&["lab", "run", "--tree", text(dir.path()), "--", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no kernel was configured here"));
}

/// The commit that is checked out, and whether it was changed, are in the run.
#[test]
fn the_commit_of_the_tree_is_kept() {
    needs(&[QEMU, GCOV_KERNEL, GIT]);
    let tree = tree();
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("linux");
    fs::create_dir(&folder).unwrap();
    copy(&tree, &folder);
    let git = |arguments: &[&str]| {
        let who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"];
        let plain = ["-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"];
        let output = Command::new("git")
            .arg("-C")
            .arg(&folder)
            .args(who)
            .args(plain)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet"]);
    git(&["add", "-f", ".config"]);
    git(&["commit", "--quiet", "-m", "as built"]);
    let head = git(&["rev-parse", "HEAD"]);
    let recorded = |name: &str| {
        let run = dir.path().join(name);
        ok(&["lab", "run", "-q", "--unobserved", "--tree", text(&folder), "-o", text(&run), "--", "true"]);
        manifest(&run)["kernel"]["tree"].clone()
    };
    let clean = recorded("clean");
    assert_eq!((clean["commit"].as_str(), clean["changed"].as_bool()), (Some(&*head), Some(false)));
    let config = fs::read_to_string(folder.join(".config")).unwrap();
    fs::write(folder.join(".config"), config + "# edited\n").unwrap();
    let changed = recorded("changed");
    assert_eq!((changed["commit"].as_str(), changed["changed"].as_bool()), (Some(&*head), Some(true)));
}

kprism_test::main!();
