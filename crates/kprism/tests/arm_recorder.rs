// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism-recorder` for 64-bit ARM in a guest with Debian's arm64 kernel and an ssh server (dropbear): by itself, and sent there by
//! `--on ssh:…`. The guest's own text of the same buffers is the judge, of the boot its log; its tracefs, files and processes are
//! compared before and after.

mod guest;
mod kernel_text;
mod sshd;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use kernel_text::{accounts_for_all, measured, same_as_log, same_as_text};
use kprism_test::{
    ARM64_GUEST, ARM64_QEMU, ARM64_RECORDER, SSHD, arm64_guest, arm64_recorder, needs, test, until,
};
use sshd::{Guest, Keys, PATIENCE, free_port, kprism};

/// The guest's first program: modules, network, ssh.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /tmp /var/tmp /dev /run /etc/dropbear
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tracefs tracefs /sys/kernel/tracing
mkdir -p /dev/pts /dev/shm; mount -t devpts devpts /dev/pts; mount -t tmpfs tmpfs /dev/shm
# In whatever order they need each other.
for pass in 1 2 3 4; do
	for module in /modules/*; do insmod $module; done
done 2>/dev/null
echo root::0:0:root:/root:/bin/sh >/etc/passwd
echo /bin/sh >/etc/shells
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
exec /bin/dropbear -F -R -E -s
"#;

impl Guest<'_> {
    fn boot<'k>(keys: &'k Keys, words: &str) -> Guest<'k> {
        let from = arm64_guest();
        let root = keys.path("root");
        fs::create_dir_all(root.join("root/.ssh")).unwrap();
        let unpacked =
            Command::new("tar").arg("-xf").arg(from.join("root.tar")).arg("-C").arg(&root).status();
        assert!(unpacked.unwrap().success());
        fs::write(root.join("init"), INIT).unwrap();
        fs::write(root.join("root/.ssh/authorized_keys"), keys.public() + "\n").unwrap();
        fs::copy(arm64_recorder(), root.join("kprism-recorder")).unwrap();
        let pack = "chmod 755 init kprism-recorder; chmod -R go-rwx root; chown -R 0:0 .; \
                    find . | busybox cpio -o -H newc -R 0:0 2>/dev/null";
        let archive = Command::new("sh").args(["-c", pack]).current_dir(&root).output().unwrap();
        fs::write(keys.path("initrd"), archive.stdout).unwrap();
        let port = free_port();
        let mut qemu = Command::new("qemu-system-aarch64");
        qemu.args(["-M", "virt", "-cpu", "cortex-a57", "-smp", "2", "-m", "512M", "-display", "none"]);
        qemu.args(["-nodefaults", "-no-reboot", "-kernel"]).arg(from.join("vmlinuz"));
        qemu.arg("-initrd").arg(keys.path("initrd"));
        qemu.args(["-append", &format!("console=ttyAMA0 panic=-1 {words}"), "-serial"]);
        qemu.arg(format!("file:{}", keys.path("console").display()));
        qemu.arg("-nic").arg(format!("user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:{port}-:22"));
        Guest::start(keys, port, qemu, Duration::from_secs(1))
    }

    fn answer(&self, script: &str) -> String {
        let output = self.ask(script);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Brings a folder of the guest's /tmp here.
    fn bring(&self, name: &str) -> PathBuf {
        let archive = self.ask(&format!("tar -C /tmp -c {name}"));
        fs::write(self.keys.path("brought.tar"), archive.stdout).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(self.keys.path("brought.tar")).arg("-C").arg(self.keys.dir.path());
        assert!(tar.status().unwrap().success());
        self.keys.path(name)
    }

    /// Settings of the tracer and of the keyboard, files in folders that copies may be in, and processes of ours.
    fn state(&self) -> String {
        self.answer(
            "cd /sys/kernel/tracing; for f in current_tracer tracing_on set_ftrace_filter set_ftrace_notrace \
             set_graph_function max_graph_depth tracing_thresh trace_clock buffer_size_kb set_event set_ftrace_pid \
             set_event_pid options/sleep-time options/funcgraph-irqs options/function-fork; do echo $f: $(cat $f); done; \
             cat /proc/sys/kernel/ctrl-alt-del; ls instances; ls -a /tmp /var/tmp /dev/shm /root /run/kprism 2>/dev/null; \
             cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -e '[k]prism-' -e '[s]leep'",
        )
    }

    /// kprism with `--on` this guest.
    fn on(&self, words: &[&str], run: &Path, command: &[&str]) -> Output {
        let mut program = kprism(&self.keys.client(""));
        program.args(words).arg(format!("--on=ssh:root@127.0.0.1:{}", self.port));
        program.env("KPRISM_RECORDER_AARCH64", arm64_recorder());
        if words[0] == "record" {
            program.arg("-o").arg(run);
        }
        if !command.is_empty() {
            program.arg("--").args(command);
        }
        program.output().unwrap()
    }
}

/// Ends the tracing of the commands that it follows, and copies the kernel's text of it.
const TEXT: &str = "echo 0 >/sys/kernel/tracing/tracing_on; cat /sys/kernel/tracing/trace >/tmp/text";

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_board_is_recorded_and_left_as_it_was() {
    needs(&[ARM64_QEMU, ARM64_GUEST, ARM64_RECORDER, SSHD]);
    let keys = Keys::new();
    let guest =
        Guest::boot(&keys, "trace_event=initcall:* initcall_debug log_buf_len=8M quiet trace_buf_size=4M");
    let kernel = fs::read_to_string(arm64_guest().join("release")).unwrap();
    let kernel = kernel.trim();

    // The boot, whose tracing ends with it.
    let run = keys.path("boot");
    let output = guest.on(&["record", "boot"], &run, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", error(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("initcalls") && said.contains("whole"), "{said}");
    assert!(error(&output).contains("see: kprism report boot -i"), "{}", error(&output));
    same_as_log(&run, &run.join("streams/ftrace/dmesg"));

    // A buffer that was never used has another text.
    guest.ask("echo 1500 >/sys/kernel/tracing/buffer_size_kb");
    let before = guest.state();
    assert!(before.contains("current_tracer: nop") && before.contains("tracing_on: 1"), "{before}");

    // Durations of a command, with its words, output and input as they are.
    let run = keys.path("run");
    let script = format!("cat; echo \"<$1>\"; cat /proc/1/maps /proc/version >/dev/null; {TEXT}; exit 3");
    let command = ["sh", "-c", &script, "sh", "a '$b"];
    let output = guest.on(&["record", "durations", "-G", "ksys_read", "--no-events"], &run, &command);
    let told = error(&output);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "<a '$b>\n");
    for part in
        ["brought back from root@127.0.0.1", " lost, ", "the command's exit code is 3", "recorded in "]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    let judge = keys.path("text.txt");
    fs::write(&judge, guest.ask("cat /tmp/text; rm /tmp/text").stdout).unwrap();
    let (calls, report) = same_as_text(&run, &judge);
    assert!(calls > 50, "{calls}");
    assert_eq!((&report["run"]["kernel"], &report["run"]["exit_code"]), (&kernel.into(), &3.into()));
    accounts_for_all(&report, &run.join("streams/ftrace/stats"));
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["options"]["on"], format!("ssh:root@127.0.0.1:{}", guest.port));
    assert_eq!(guest.state(), before);

    // The same program by hand, and what it refuses.
    let settings = r#"'{"graph":["ksys_read"],"events":false}'"#;
    let script = format!(
        "cd /tmp; /kprism-recorder record hand {settings} sh -c 'cat /proc/1/maps >/dev/null; {TEXT}; exit 7'; echo $?"
    );
    let said = guest.answer(&script);
    assert!(
        said.starts_with("7\n") && said.contains("recorded in hand; where kprism is: kprism report"),
        "{said}"
    );
    let judge = keys.path("hand.txt");
    fs::write(&judge, guest.ask("cat /tmp/text; rm /tmp/text").stdout).unwrap();
    let (calls, _) = same_as_text(&guest.bring("hand"), &judge);
    assert!(calls > 50, "{calls}");
    let refused = |words: &str, code: i32, why: &str| {
        let output = guest.ask(&format!("cd /tmp; /kprism-recorder {words}"));
        assert_eq!(output.status.code(), Some(code), "{words}: {}", error(&output));
        assert!(error(&output).contains(why), "{words}: {}", error(&output));
    };
    refused("", 2, "kprism-recorder record FOLDER SETTINGS COMMAND");
    refused("probe run {} probes true", 2, "`probe` needs an x86-64 processor, and this is aarch64");
    refused("events-begin run {}", 2, "`events-begin` needs an x86-64 processor");
    refused("record new { true", 2, "settings: ");
    refused("record new {} /no/such", 127, "/no/such");
    refused("record hand {} true", 125, "hand is there already");
    let help = guest.ask("/kprism-recorder --help");
    let help = (help.status.code(), String::from_utf8_lossy(&help.stdout).into_owned());
    assert!(
        help.0 == Some(0) && help.1.contains("for aarch64: records where kprism does not run"),
        "{help:?}"
    );
    // An empty journal stays.
    let journal = "cat /run/kprism/tracefs.journal; rm -r /run/kprism";
    assert_eq!(guest.answer(&format!("rm -r /tmp/hand; {journal}")), "");
    assert_eq!(guest.state(), before);

    // Killed, its guard puts back what it changed.
    guest.ask(
        "cd /tmp; /kprism-recorder record killed '{\"graph\":[\"ksys_read\"]}' sleep 30 & \
         while [ $(cat /sys/kernel/tracing/tracing_on) != 1 ] || ! pidof sleep >/dev/null; do sleep 0.1; done; \
         kill -9 $!; kill $(pidof sleep)",
    );
    guest.ask("rm -r /tmp/killed");
    until(PATIENCE, "put back", || {
        guest.ask("[ -s /run/kprism/tracefs.journal ] || rm -r /run/kprism");
        guest.state() == before
    });
}

#[test]
fn what_the_recorder_cannot_do_is_told_before_anything_is_copied() {
    needs(&[ARM64_QEMU, ARM64_GUEST, ARM64_RECORDER, SSHD]);
    let keys = Keys::new();
    let guest = Guest::boot(&keys, "quiet");
    let run = keys.path("run");
    let refused = |words: &[&str], command: &[&str], parts: &[&str]| {
        let output = guest.on(words, &run, command);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", error(&output));
        let told = error(&output);
        parts.iter().for_each(|part| assert!(told.contains(part), "{words:?}: {part}: {told}"));
        assert!(!run.exists());
    };
    let processor = "its processor is aarch64, and this kprism is built for x86_64";
    refused(
        &["record", "probe", "vfs_read"],
        &["true"],
        &[processor, "`record durations` by ftrace and `record boot` alone"],
    );
    refused(&["check"], &[], &[processor, "`record boot` alone"]);
    let durations = ["record", "durations", "--aggregate", "-T", "vfs_read"];
    refused(&durations, &["true"], &[processor, "--aggregate is done by BPF"]);
    refused(&["record", "durations", "--remeasure"], &["true"], &["--remeasure is a second recording"]);
    refused(&["record", "durations"], &["/no/such/program"], &["/no/such/program"]);
    refused(&["record", "boot"], &[], &["this machine was not booted with tracing"]);

    let mut program = kprism(&keys.client(""));
    program
        .args(["record", "durations", "-o"])
        .arg(&run)
        .arg(format!("--on=ssh:root@127.0.0.1:{}", guest.port));
    let output = program.env("KPRISM_RECORDER_AARCH64", "/no/such").args(["--", "true"]).output().unwrap();
    let told = error(&output);
    for part in [
        processor,
        "kprism-recorder-aarch64",
        "KPRISM_RECORDER_AARCH64",
        "make recorder-arm64",
        "docs/board.md",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!((output.status.code(), run.exists()), (Some(2), false));
    let (all, _) = {
        let output = guest.on(&["record", "durations", "-T", "vfs_*"], &run, &["ls", "/"]);
        assert_eq!(output.status.code(), Some(0), "{}", error(&output));
        measured(&run)
    };
    assert!(!all.is_empty() && all.keys().all(|function| function.starts_with("vfs_")), "{all:?}");
}

kprism_test::main!();
