// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `make install` and `make dist` copy (scripts/install.sh): the list of files, static programs, plugins that need only an old C
//! library and QEMU. No second build is made for this: the programs are those of the tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_test::{GCC, needs, test};

/// The newest glibc whose symbols the plugins may need, as docs/install.md says.
const GLIBC: (u32, u32) = (2, 34);

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Installs into an empty folder, at the top of it.
fn installed() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_kprism")).parent().unwrap();
    output(
        Command::new("sh")
            .arg(top().join("scripts/install.sh"))
            .arg(built)
            .arg(place.path())
            .env("PREFIX", ""),
    );
    place
}

fn files(folder: &Path, below: &Path, all: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, below, all),
            false => drop(all.insert(path.strip_prefix(below).unwrap().display().to_string())),
        }
    }
}

#[test]
fn every_file_is_there_and_the_program_runs_from_there() {
    let place = installed();
    let mut all = BTreeSet::new();
    files(place.path(), place.path(), &mut all);
    let (pages, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|file| file.starts_with("share/man/"));
    // These are only there if they were asked for (`make sql`, `make recorder-arm64`).
    let asked_for = [
        "lib/kprism/kprism-sql",
        "lib/kprism/libduckdb.so",
        "share/doc/kprism/LICENSE-DuckDB",
        "lib/kprism/kprism-recorder-aarch64",
    ];
    assert_eq!(rest.contains(&asked_for[1].into()), rest.contains(&asked_for[2].into()), "DuckDB's licence");
    let rest: Vec<_> = rest.into_iter().filter(|file| !asked_for.contains(&file.as_str())).collect();
    assert!(pages.contains(&"share/man/man1/kprism.1".into()) && pages.len() > 20, "{pages:?}");
    assert_eq!(
        rest,
        [
            "bin/kprism",
            "lib/kprism/kprism-agent",
            "lib/kprism/kprism-recorder",
            "lib/kprism/libkprism_observer.so",
            "lib/kprism/libkprism_user.so",
            "share/bash-completion/completions/kprism",
            "share/doc/kprism/CHANGELOG.md",
            "share/doc/kprism/LICENSE-APACHE",
            "share/doc/kprism/LICENSE-GPL-2.0",
            "share/doc/kprism/LICENSE-MIT",
            "share/doc/kprism/README.md",
            "share/fish/vendor_completions.d/kprism.fish",
            "share/kprism/collect-ftrace.sh",
            "share/zsh/site-functions/_kprism",
        ]
    );
    let program = place.path().join("bin/kprism");
    let version = output(Command::new(&program).arg("--version").env_clear());
    assert_eq!(version, format!("kprism {}\n", env!("CARGO_PKG_VERSION")));
    // It finds its files there, not in the build folder.
    let items = Command::new(&program).args(["check", "--json"]).output().unwrap();
    let items: serde_json::Value = serde_json::from_slice(&items.stdout).unwrap();
    let agent = items.as_array().unwrap().iter().find(|item| item["name"] == "guest agent").unwrap();
    let found = Path::new(agent["found"].as_str().unwrap()).canonicalize().unwrap();
    assert_eq!(found, place.path().canonicalize().unwrap().join("lib/kprism/kprism-agent"));
}

#[test]
fn a_file_that_is_not_built_is_named() {
    let place = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .arg(top().join("scripts/install.sh"))
        .args([place.path(), place.path()])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/kprism is not built: cargo build --release"), "{said}");
}

#[test]
fn programs_are_static_and_use_no_user_or_host_database() {
    needs(&[GCC]);
    let place = installed();
    for program in ["bin/kprism", "lib/kprism/kprism-agent", "lib/kprism/kprism-recorder"] {
        let path = place.path().join(program);
        // A static program at a random address relocates itself by its dynamic section, which needs no library.
        let headers = output(Command::new("readelf").args(["-ldW"]).arg(&path));
        assert!(
            !headers.contains("INTERP") && !headers.contains("(NEEDED)"),
            "{program} is not static: {headers}"
        );
        // For these, glibc loads modules of the machine's own C library, which may not fit.
        let names = output(Command::new("nm").arg(&path));
        for name in ["getaddrinfo", "gethostbyname", "getpwuid_r", "getpwnam_r", "getgrgid_r"] {
            assert!(
                !names.lines().any(|line| line.split(' ').next_back() == Some(name)),
                "{program} has {name}"
            );
        }
    }
}

#[test]
fn plugins_need_an_old_c_library_and_functions_of_qemu_alone() {
    needs(&[GCC]);
    let place = installed();
    for plugin in ["libkprism_observer.so", "libkprism_user.so"] {
        let path = place.path().join("lib/kprism").join(plugin);
        let symbols = output(Command::new("nm").args(["-D", "--undefined-only"]).arg(&path));
        let mut of_qemu = 0;
        for line in symbols.lines() {
            let mut words = line.split_whitespace();
            let (kind, name) = (words.next().unwrap(), words.next().unwrap());
            match name.split_once('@') {
                Some((_, version)) if version.contains("GLIBC_") => {
                    let numbers = version.rsplit('_').next().unwrap();
                    let mut numbers = numbers.split('.').map(|number| number.parse::<u32>().unwrap());
                    let version = (numbers.next().unwrap(), numbers.next().unwrap());
                    assert!(version <= GLIBC, "{plugin} needs {name}");
                }
                Some((_, version)) => assert!(version.contains("GCC_"), "{plugin} needs {name}"),
                None if name.starts_with("qemu_plugin_") => of_qemu += 1,
                None => assert!(kind == "w" || name.starts_with("g_byte_array_"), "{plugin} needs {name}"),
            }
        }
        assert!(of_qemu > 5, "{plugin}: {symbols}");
    }
}

#[test]
fn the_page_names_this_version_and_its_limits() {
    let page = std::fs::read_to_string(top().join("docs/install.md")).unwrap();
    for words in [
        concat!("kprism-", env!("CARGO_PKG_VERSION"), "-x86_64-linux.tar.gz"),
        concat!("kprism_", env!("CARGO_PKG_VERSION"), "_amd64.deb"),
        &format!("glibc {}.{} or later", GLIBC.0, GLIBC.1),
        "QEMU 9.2 to 11.0",
    ] {
        assert!(page.contains(words), "docs/install.md has no `{words}`");
    }
}

/// Commands of the tour that cannot be run as they stand are still in it.
#[test]
fn the_tour_can_be_taken_out_of_its_page() {
    let script = top().join("tests/dist/console.py");
    let skip = top().join("tests/dist/skip.tsv");
    let mut command = Command::new("python3");
    command
        .arg(&script)
        .arg(top().join("docs/tour.md"))
        .arg("--skip")
        .arg(skip)
        .args(["A tour", "The account of a run"]);
    let commands = output(&mut command);
    assert!(
        commands.starts_with("kprism lab run -- sh -c") && commands.ends_with("kprism info\n"),
        "{commands}"
    );
    let install = output(
        Command::new("python3").arg(&script).arg(top().join("docs/install.md")).args(["--root", "Debian 12"]),
    );
    assert!(install.contains("apt-get install") && install.contains("-t bookworm-backports"), "{install}");
}

#[test]
fn set_up_knows_distributions_and_their_names() {
    let place = tempfile::tempdir().unwrap();
    let names = top().join("scripts/setup-names.sh");
    for (release, system, package) in [
        ("ID=debian\n", "debian", "libelf1"),
        ("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "ubuntu", "libelf1t64"),
        ("ID=rocky\nID_LIKE='rhel centos fedora'\n", "fedora", "elfutils-libelf"),
        ("ID=gentoo\n", "other", "libelf1"),
    ] {
        let file = place.path().join("os-release");
        std::fs::write(&file, release).unwrap();
        let line = ". \"$1\"; system=$(distribution \"$2\"); echo $system $(package_name $system libelf1)";
        let said = output(Command::new("sh").args(["-c", line, "sh"]).args([&names, &file]));
        assert_eq!(said, format!("{system} {package}\n"), "{release}");
    }
}

kprism_test::main!();
