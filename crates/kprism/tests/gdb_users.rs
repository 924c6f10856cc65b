// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism gdbserver` serves the user it runs as, and nobody else of this machine: another user, connected for real,
//! reads no memory and writes no file.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kprism_test::{ROOT, needs, test};

/// A user who is not root.
const OTHER: u32 = 65534;

/// A server, ended when dropped, and the lines that it says.
struct Server {
    process: Child,
    said: Receiver<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Server {
    /// The server, and where it listens.
    fn start(args: &[&str]) -> (Self, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        let command = command.arg("gdbserver").args(args).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("kprism runs");
        let (to, said) = channel();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).all(|line| to.send(line).is_ok()));
        let server = Self { process, said };
        let line = server.says("target remote ");
        let (_, address) = line.split_once("target remote ").unwrap();
        (server, address.to_owned())
    }

    /// Waits for a line that holds this.
    fn says(&self, wanted: &str) -> String {
        loop {
            let line = self.said.recv_timeout(Duration::from_secs(60));
            let line = line.unwrap_or_else(|why| panic!("not said: {wanted}: {why}"));
            if line.contains(wanted) {
                return line;
            }
        }
    }
}

/// A process of root's, ended when dropped.
struct Sleeps(Child);

impl Drop for Sleeps {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Sleeps {
    fn start() -> (Self, String) {
        let child = Command::new("sleep").arg("1000").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let sleeps = Self(child.expect("sleep runs"));
        let pid = sleeps.0.id().to_string();
        (sleeps, pid)
    }
}

/// What a client of this user is answered to these bytes, sent at once. perl is there wherever Debian is.
fn answered(user: u32, address: &str, bytes: &[u8]) -> Vec<u8> {
    const CLIENT: &str = "use Socket; my $to = shift; \
        if ($to =~ /^(.*):(\\d+)$/) { \
          my ($host, $port) = ($1, $2); socket(S, PF_INET, SOCK_STREAM, 0); \
          connect(S, pack_sockaddr_in($port, inet_aton($host))) or die \"connect: $!\"; \
        } else { socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, pack_sockaddr_un($to)) or die \"connect: $!\"; } \
        local $/; my $sent = <STDIN>; syswrite(S, $sent); alarm 2; $SIG{ALRM} = sub { exit 0 }; \
        while (sysread(S, my $got, 4096)) { syswrite(STDOUT, $got); }";
    let mut command = Command::new("perl");
    command.args(["-e", CLIENT, address]).uid(user).gid(user).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().expect("perl runs");
    client.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = client.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("connect:"), "{said}");
    output.stdout
}

fn packets(all: &[String]) -> Vec<u8> {
    all.iter().flat_map(|text| kprism_rsp::wire::packet(text.as_bytes())).collect()
}

fn secret(dir: &Path) -> (PathBuf, Vec<u8>) {
    let file = dir.join("secret");
    fs::write(&file, "root's own").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let save = format!("QTSave:{}", kprism_rsp::hex::bytes(file.as_os_str().as_encoded_bytes()));
    (file, packets(&["qSupported".to_owned(), save, "g".to_owned()]))
}

#[test]
fn another_user_is_refused() {
    // Another user's processes, and root's memory.
    needs(&[ROOT]);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (file, sent) = secret(dir.path());
    let (_sleeps, pid) = Sleeps::start();
    let socket = dir.path().join("socket");
    // `kprism-gdb` tests the kernel's table of IPv6.
    for listen in [":0", socket.to_str().unwrap()] {
        let (server, address) = Server::start(&["--pid", &pid, listen]);
        if listen.starts_with('/') {
            let mode = fs::metadata(&socket).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            // Even if somebody opens it to all.
            fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let got = answered(OTHER, &address, &sent);
        assert_eq!(String::from_utf8_lossy(&got), "", "{listen}");
        let said = server.says("refused");
        assert!(said.contains(&format!("user {OTHER}")) && said.contains("are served"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), b"root's own", "{listen}");
        // Its own user is served all the same.
        let got = answered(0, &address, &packets(&["qSupported".to_owned()]));
        assert!(String::from_utf8_lossy(&got).contains("PacketSize"), "{listen}");
    }
}

/// The kernel's server has the same door. Only its memory is read: nothing is traced.
#[test]
fn another_user_is_refused_the_kernel() {
    // Another user's processes, and root's memory.
    needs(&[ROOT]);
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (file, sent) = secret(dir.path());
    let (server, address) = Server::start(&["--kernel", ":0"]);
    assert_eq!(answered(OTHER, &address, &sent), b"");
    server.says("refused");
    assert_eq!(fs::read(&file).unwrap(), b"root's own");
}

/// A page in a browser of our own user can make it send words to any port here.
#[test]
fn a_browser_is_no_gdb() {
    // Another user's processes, and root's memory.
    needs(&[ROOT]);
    let dir = tempfile::tempdir().unwrap();
    let (file, sent) = secret(dir.path());
    let (_sleeps, pid) = Sleeps::start();
    let (server, address) = Server::start(&["--pid", &pid, ":0"]);
    let words = [b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", &sent[..]].concat();
    assert_eq!(answered(0, &address, &words), b"");
    server.says("this is not GDB");
    assert_eq!(fs::read(&file).unwrap(), b"root's own");
    // What GDB sends writes no file that is not root's own, and follows no link.
    let theirs = dir.path().join("theirs");
    fs::write(&theirs, "kept").unwrap();
    std::os::unix::fs::chown(&theirs, Some(OTHER), None).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&theirs, &link] {
        let save = format!("QTSave:{}", kprism_rsp::hex::bytes(path.as_os_str().as_encoded_bytes()));
        let got = answered(0, &address, &packets(&[save]));
        assert!(String::from_utf8_lossy(&got).contains("$E01#"), "{path:?}");
    }
    assert_eq!(fs::read(&theirs).unwrap(), b"kept");
    assert_eq!(fs::read(&file).unwrap(), b"root's own");
}

kprism_test::main!();
