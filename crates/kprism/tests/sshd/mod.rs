// SPDX-License-Identifier: MIT OR Apache-2.0
//! ssh for tests: keys, a client's configuration, and a server of the test's own on the loopback.
#![allow(dead_code)]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A folder with keys, and what connects by them.
pub struct Keys {
    pub dir: TempDir,
}

impl Keys {
    pub fn new() -> Keys {
        let keys = Keys { dir: tempfile::tempdir().unwrap() };
        for name in ["host", "own"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(keys.path(name))
                .status();
            assert!(made.unwrap().success());
        }
        keys
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that calls its function `work` as often as its argument says.
    pub fn program(&self) -> PathBuf {
        let source = self.path("case.c");
        fs::write(
            &source,
            "#include <stdlib.h>\nvolatile int sum;\n__attribute__((noinline)) int work(int n) { sum += n; return n; }\n\
             int main(int argc, char **argv) { for (int i = 0; i < atoi(argv[1]); i++) work(i); return 0; }\n",
        )
        .unwrap();
        let program = self.path("case");
        let cc = Command::new("cc").args(["-g", "-O1", "-o"]).arg(&program).arg(&source).status();
        assert!(cc.unwrap().success());
        program
    }

    /// The user's public key.
    pub fn public(&self) -> String {
        fs::read_to_string(self.path("own.pub")).unwrap().trim().to_owned()
    }

    /// A program that is ssh with the test's own configuration, for `KPRISM_SSH`. `after` is a filter for what it prints.
    pub fn client(&self, after: &str) -> PathBuf {
        let configuration = format!(
            "IdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nStrictHostKeyChecking no\nBatchMode yes\n\
             LogLevel ERROR\nConnectTimeout 60\n",
            self.path("own").display(),
            self.path("known").display(),
        );
        fs::write(self.path("config"), configuration).unwrap();
        let config = self.path("config");
        let text = match after {
            "" => format!("#!/bin/sh\nexec ssh -F {} \"$@\"\n", config.display()),
            after => format!("#!/bin/sh\nssh -F {} \"$@\" | {after}\n", config.display()),
        };
        let program = self.path(if after.is_empty() { "ssh" } else { "ssh-cut" });
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        program
    }
}

/// A port of the loopback that nobody uses now.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server, which ends with the value.
pub struct Sshd {
    server: Child,
    pub port: u16,
}

impl Sshd {
    /// `more`: further lines of its configuration.
    pub fn start(keys: &Keys, more: &str) -> Sshd {
        fs::create_dir_all("/run/sshd").unwrap();
        fs::write(keys.path("authorized"), keys.public()).unwrap();
        let port = free_port();
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\n\
             UsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\n{more}\n",
            keys.path("host").display(),
            keys.path("authorized").display(),
        );
        let file = keys.path(&format!("sshd-{port}"));
        fs::write(&file, configuration).unwrap();
        let log = fs::File::create(keys.path(&format!("sshd-{port}.log"))).unwrap();
        let mut server = Command::new("/usr/sbin/sshd");
        server.args(["-D", "-e", "-f"]).arg(&file).stdin(Stdio::null()).stderr(log);
        let server = server.spawn().unwrap();
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Sshd { server, port }
    }

    pub fn on(&self) -> String {
        format!("--on=ssh:root@127.0.0.1:{}", self.port)
    }

    /// Processes of its sessions: the server's children and all below.
    pub fn sessions(&self) -> Vec<u32> {
        let mut found = vec![self.server.id()];
        let mut next = 0;
        while next < found.len() {
            let parent = found[next].to_string();
            found.extend(processes().into_iter().filter(|p| p.parent == parent).map(|p| p.pid));
            next += 1;
        }
        found.split_off(1)
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

pub struct Process {
    pub pid: u32,
    pub parent: String,
    /// Words of its command line, with blanks between them.
    pub line: String,
}

pub fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let process = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.to_owned();
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (state != "Z").then_some(Process { pid, parent, line })
    };
    pids.filter_map(process).collect()
}

/// Folders of copies on this machine, and processes whose command line contains `mark` or such a folder.
pub fn left(mark: &str) -> Vec<String> {
    let mut left = Vec::new();
    for folder in ["/tmp", "/var/tmp", "/dev/shm", "/root"] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.path().display().to_string());
        left.extend(names.filter(|name| name.contains("/.kprism-")));
    }
    let is_ours = |process: &Process| {
        process.pid != std::process::id()
            && (process.line.contains(mark) || process.line.contains("/.kprism-"))
    };
    left.extend(
        processes().into_iter().filter(is_ours).map(|process| format!("{}: {}", process.pid, process.line)),
    );
    left
}

/// Longest time that anything waited for may take.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// kprism with this client.
pub fn kprism(client: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
    command.env("KPRISM_SSH", client).env_remove("TMPDIR").stdin(Stdio::null());
    command
}

/// A guest in QEMU into which root logs in with the keys. It ends with the value.
pub struct Guest<'k> {
    qemu: Child,
    pub keys: &'k Keys,
    pub port: u16,
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Guest<'_> {
    /// Starts QEMU, whose serial port is the file `console` of the keys, and waits for a login: tried 120 times, with `pause`
    /// between two.
    pub fn start<'k>(keys: &'k Keys, port: u16, mut qemu: Command, pause: Duration) -> Guest<'k> {
        let qemu = qemu.stdin(Stdio::null()).spawn().unwrap();
        let guest = Guest { qemu, keys, port };
        let mut tries = 0;
        while !guest.ask("true").status.success() {
            tries += 1;
            let console = fs::read_to_string(keys.path("console")).unwrap_or_default();
            assert!(tries < 120, "no login: {console}");
            std::thread::sleep(pause);
        }
        guest
    }

    /// Runs a script there.
    pub fn ask(&self, script: &str) -> Output {
        let mut ssh = Command::new(self.keys.client(""));
        ssh.args(["-p", &self.port.to_string(), "root@127.0.0.1", script]).stdin(Stdio::null());
        ssh.output().unwrap()
    }
}
