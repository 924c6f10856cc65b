// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record durations --on ssh:…` with another kernel: that of a guest with systemd and sshd. Its tracefs, files and processes
//! are compared before and after, also after a `kill -9` of this side.

mod sshd;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kprism_test::{QEMU, SSHD, SYSTEMD_IMAGE, cache, needs, test, turn, until, until_equal};
use sshd::{Guest, Keys, free_port, kprism};

/// Longest time that anything waited for may take. The guest has no KVM and takes 70 MB by ssh, beside other tests.
const PATIENCE: Duration = Duration::from_secs(300);

impl Guest<'_> {
    /// Boots a copy of the image to which the test's key is added.
    fn boot(keys: &Keys) -> Guest<'_> {
        let image = cache().join("tools/systemd-image");
        let disk = keys.path("disk.raw");
        let copied =
            Command::new("cp").arg("--sparse=always").arg(image.join("disk.raw")).arg(&disk).status();
        assert!(copied.unwrap().success());
        let commands = format!(
            "mkdir /root/.ssh\nsif /root/.ssh mode 040700\nwrite {} /root/.ssh/authorized_keys\n\
             sif /root/.ssh/authorized_keys mode 0100600\n",
            keys.path("own.pub").display()
        );
        fs::write(keys.path("commands"), commands).unwrap();
        let mut debugfs = Command::new("/usr/sbin/debugfs");
        debugfs.args(["-w", "-f"]).arg(keys.path("commands")).arg(&disk).stderr(Stdio::null());
        assert!(debugfs.stdout(Stdio::null()).status().unwrap().success());
        let port = free_port();
        let words = "root=/dev/vda console=ttyS0 ip=dhcp systemd.wants=systemd-network-generator.service \
                     systemd.wants=systemd-networkd.service";
        let mut qemu = Command::new("qemu-system-x86_64");
        // QEMU 10.0 fails now and then where one CPU's thread maps a device while another one runs (`iotlb_to_section`).
        qemu.args(["-accel", "tcg,thread=single"]);
        qemu.args([
            "-m",
            "1G",
            "-smp",
            "2",
            "-display",
            "none",
            "-nodefaults",
            "-no-reboot",
            "-append",
            words,
        ]);
        qemu.arg("-kernel").arg(image.join("vmlinuz")).arg("-initrd").arg(image.join("initrd.img"));
        qemu.arg("-drive").arg(format!("file={},if=virtio,format=raw", disk.display()));
        qemu.arg("-nic").arg(format!("user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{port}-:22"));
        qemu.args(["-device", "virtio-rng-pci", "-serial"]);
        qemu.arg(format!("file:{}", keys.path("console").display()));
        Guest::start(keys, port, qemu, Duration::from_secs(2))
    }

    /// Settings of the tracer, files in folders that copies may be in, and names of processes, but for the kernel's.
    fn state(&self) -> Vec<String> {
        let output = self.ask(
            "cd /sys/kernel/tracing; for f in current_tracer tracing_on set_ftrace_filter set_ftrace_notrace \
             set_graph_function set_graph_notrace max_graph_depth tracing_thresh trace_clock buffer_size_kb set_event \
             set_ftrace_pid set_event_pid tracing_cpumask options/sleep-time options/graph-time options/funcgraph-irqs; \
             do echo $f: $(cat $f); done; ls instances; ls -a /tmp /var/tmp /dev/shm /root /run; \
             cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o '[k]prism-[^ ]*\\|[s]leep [0-9.]*'",
        );
        let lines = String::from_utf8(output.stdout).unwrap();
        // Folders of systemd's services come and go with them.
        lines.lines().filter(|line| !line.starts_with("systemd-private-")).map(str::to_owned).collect()
    }

    fn record(&self, run: &Path, command: &[&str]) -> Command {
        let mut record = kprism(&self.keys.client(""));
        record.args(["record", "durations", "--on", &format!("ssh:root@127.0.0.1:{}", self.port), "-o"]);
        // Not all functions: each change of the kernel's code costs QEMU far more than a processor.
        record.arg(run).args(["-T", "ksys_*", "-T", "vfs_*", "-T", "ext4_*", "-T", "*_page_fault"]);
        record.args(["--longer-than", "1us", "--"]).args(command);
        record
    }
}

#[test]
fn another_kernel_is_recorded_and_left_as_it_was() {
    needs(&[QEMU, SSHD, SYSTEMD_IMAGE]);
    turn(3, 1);
    let keys = Keys::new();
    let guest = Guest::boot(&keys);
    // A buffer that was never used has another text.
    guest.ask("echo 1500 > /sys/kernel/tracing/buffer_size_kb; cat /sys/kernel/tracing/current_tracer");
    let before = guest.state();
    let has = |state: &[String], line: &str| state.iter().any(|known| known == line);
    assert!(has(&before, "current_tracer: nop"), "{before:#?}");

    let run = keys.path("run");
    let output =
        guest.record(&run, &["sh", "-c", "ls -lR /etc | tail -n 1; uname -r; exit 3"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    let kernel = String::from_utf8(guest.ask("uname -r").stdout).unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(&kernel), "{error}");
    assert_eq!(guest.state(), before);

    let json = |words: &[&str]| -> serde_json::Value {
        let output = kprism(&keys.client("")).args(words).arg("-i").arg(&run).output().unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    };
    let report = json(&["report", "durations", "--json", "--limit", "0"]);
    let names: Vec<&str> =
        report["rows"].as_array().unwrap().iter().filter_map(|row| row["function"].as_str()).collect();
    // Names are those of the guest's kernel, which its own kallsyms has.
    let symbols = String::from_utf8(guest.ask("cut -d ' ' -f 3 /proc/kallsyms").stdout).unwrap();
    let known: std::collections::HashSet<&str> =
        symbols.lines().map(|line| line.split('\t').next().unwrap_or(line)).collect();
    let unknown: Vec<_> = names.iter().filter(|name| !known.contains(*name)).collect();
    assert!(unknown.is_empty(), "not known: {unknown:?}");
    // What a listing of a tree calls, however quick the machine is and whatever it has in memory.
    for called in [
        "ksys_read",
        "ksys_write",
        "vfs_read",
        "vfs_write",
        "vfs_open",
        "vfs_statx",
        "vfs_getxattr",
        "ext4_readdir",
        "ext4_htree_fill_tree",
        "ext4_bread",
    ] {
        assert!(names.contains(&called), "{called}: {names:?}");
    }
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["kernel"]["release"], kernel.trim());
    assert_eq!(manifest["exit_code"], 3);
    assert_eq!(manifest["options"]["on"], format!("ssh:root@127.0.0.1:{}", guest.port));

    // This side is killed while the guest's kernel is traced.
    let mut child = guest.record(&keys.path("killed"), &["sleep", "4714.25"]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The command line of kprism on the other side names the command too, before anything is set up.
    until(PATIENCE, "the command is traced", || {
        let state = guest.state();
        has(&state, "current_tracer: function_graph") && has(&state, "sleep 4714.25")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    until_equal(PATIENCE, "all is as before", &before, || guest.state());
    assert!(!keys.path("killed").exists());
}

kprism_test::main!();
