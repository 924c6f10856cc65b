// SPDX-License-Identifier: MIT OR Apache-2.0
//! Identifies the user at the other end of a connection. Only this process's user, and root, may see what this process
//! may see.
//!
//! For a Unix socket the kernel tells the peer (`SO_PEERCRED`). A TCP connection on the loopback has both sockets on
//! this machine, and the kernel's table of sockets (`/proc/net/tcp`) lists the owner of the other one. Stock GDB cannot
//! send a password; this way it needs none.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

/// State of an established connection, in the kernel's `include/net/tcp_states.h`.
const ESTABLISHED: &str = "01";

/// Checks whether this user may be served. The error is the reason.
pub fn allowed(uid: u32) -> Result<(), String> {
    // SAFETY: it takes nothing and gives a number.
    let own = unsafe { libc::geteuid() };
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    judged(uid, own, &map)
}

fn judged(uid: u32, own: u32, map: &str) -> Result<(), String> {
    /// Number that the kernel shows for a user without a number in this namespace.
    const NOBODY_KNOWN: u32 = 65534;
    let everybody_known = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    if uid == NOBODY_KNOWN && !everybody_known {
        return Err("its user has no number here".to_owned());
    }
    if uid == own || uid == 0 {
        return Ok(());
    }
    Err(format!("it is user {uid}'s; only user {own}, as whom kprism runs, and root are served"))
}

/// The user at the other end of a Unix socket, at the time it connected.
pub fn of_unix(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both are ours, and the length is the structure's.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

/// The user at the other end of a TCP connection on the loopback.
pub fn of_tcp(own: SocketAddr, other: SocketAddr) -> Result<u32, String> {
    let table = if own.is_ipv4() { "/proc/self/net/tcp" } else { "/proc/self/net/tcp6" };
    let look = || {
        let text = fs::read_to_string(table).map_err(|why| format!("{table}: {why}"))?;
        owner(&text, other, own).ok_or_else(|| format!("{table} does not say whose it is"))
    };
    // A socket that is being closed belongs to root for a moment before its state changes. The second look sees the new
    // state.
    let first = look()?;
    let second = look()?;
    if first == second { Ok(second) } else { Err("its user changed".to_owned()) }
}

/// The owner of the socket at `from` that is connected to `to`.
fn owner(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let (from, to) = (shown(from), shown(to));
    table.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let same = words.next()? == from && words.next()? == to && words.next()? == ESTABLISHED;
        // tx_queue:rx_queue, tr:when, retransmits, uid.
        if same { words.nth(3)?.parse().ok() } else { None }
    })
}

/// An address in the kernel's format: 32-bit words of this machine, in hexadecimal digits.
fn shown(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).filter_map(|word| Some(u32::from_ne_bytes(word.try_into().ok()?)));
    let words: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:07D0 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0 100 0 0 10 0
   1: 0100007F:07D0 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 101 1 0 20 4 30 10 -1
   2: 0100007F:9C40 0100007F:07D0 01 00000000:00000000 00:00000000 00000000 65534        0 102 1 0 20 4 30 10 -1
   3: 0100007F:9C41 0100007F:07D0 05 00000000:00000000 00:00000000 00000000     0        0 0 1 0 20 4 30 10 -1
";

    #[test]
    fn the_other_ends_user() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(owner(TABLE, at(40000), at(2000)), Some(65534));
        // The socket of the own end does not match.
        assert_eq!(owner(TABLE, at(2000), at(40000)), Some(0));
        // A closed socket is shown as root's, and must not match.
        assert_eq!(owner(TABLE, at(40001), at(2000)), None);
        assert_eq!(owner(TABLE, at(40002), at(2000)), None);
        assert_eq!(owner("x\ny z\n", at(1), at(2)), None);
    }

    #[test]
    fn users() {
        let all = "         0          0 4294967295\n";
        assert!(judged(1000, 1000, all).is_ok() && judged(0, 1000, all).is_ok());
        assert!(judged(1000, 0, all).unwrap_err().contains("user 1000's"));
        assert!(judged(65534, 65534, all).is_ok());
        assert!(judged(65534, 65534, "0 1000 1\n").unwrap_err().contains("no number here"));
    }

    #[test]
    fn the_kernel_says_who() {
        // SAFETY: it takes nothing and gives a number.
        let own = unsafe { libc::geteuid() };
        for local in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(local) else {
                assert!(local.starts_with('['), "no loopback");
                continue;
            };
            let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
            assert_eq!(of_tcp(ends.0, ends.1), Ok(own));
            // Data sent before the end does not give a closed connection an owner.
            other.write_all(b"+").unwrap();
            drop(other);
            assert!(of_tcp(ends.0, ends.1).unwrap_err().contains("does not say"));
        }
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(of_unix(&one).unwrap(), own);
    }
}
