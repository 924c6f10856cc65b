// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets: a Unix socket, or TCP on the loopback only. Serves one GDB at a time, of this process's user or of root.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use kprism_rsp::hex;
use kprism_rsp::wire::{Decoder, Event, packet};

use crate::server::{Answer, Server};
use crate::{Error, peer};

/// Default size of the trace buffer, in bytes.
pub const BUFFER: usize = 32 << 20;
/// Interval at which records are read while tracing runs.
const TICK: Duration = Duration::from_millis(5);
/// Interval at which signals and ends are checked otherwise.
const IDLE: Duration = Duration::from_millis(100);

/// Address at which GDB connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A socket's path.
    Unix(PathBuf),
    /// An address on the loopback.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses `PATH`, `:PORT`, `127.0.0.1:PORT`, `localhost:PORT`, `[::1]:PORT`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.contains('/') || !text.contains(':') {
            return Ok(Self::Unix(text.into()));
        }
        let Some((host, port)) = text.rsplit_once(':') else { return Ok(Self::Unix(text.into())) };
        let host = match host {
            "" | "localhost" | "127.0.0.1" => "127.0.0.1",
            "[::1]" => "[::1]",
            other => {
                return Err(Error::Cannot(format!(
                    "{other} is not this machine's loopback, and nobody else may connect: use 127.0.0.1:{port}, \
                     and ssh -L from elsewhere"
                )));
            }
        };
        let address = format!("{host}:{port}").parse();
        let wrong = |_| Error::Cannot(format!("{text}: {port:?} is no port (0 to 65535)"));
        address.map(Self::Tcp).map_err(wrong)
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket, with the path that is removed at the end.
    Unix(UnixListener, PathBuf),
    /// A TCP socket on the loopback.
    Tcp(TcpListener),
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    /// Binds the socket. Replaces a Unix socket on which nobody listens any more.
    pub fn bind(address: &Address) -> Result<Self, Error> {
        match address {
            Address::Unix(path) => {
                let stale = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
                    && UnixStream::connect(path).is_err();
                if stale {
                    fs::remove_file(path).ok();
                }
                let failed = Error::system(path.display().to_string());
                // A client sees all that this process may see. So the socket is accessible to its owner only, from its
                // first moment on.
                // SAFETY: umask takes and gives a number. No other thread makes files at this time.
                let before = unsafe { libc::umask(0o177) };
                let bound = UnixListener::bind(path);
                // SAFETY: as above.
                unsafe { libc::umask(before) };
                Ok(Self::Unix(bound.map_err(failed)?, path.clone()))
            }
            Address::Tcp(address) => {
                let failed = Error::system(address.to_string());
                Ok(Self::Tcp(TcpListener::bind(address).map_err(failed)?))
            }
        }
    }

    /// The address in the form that GDB's `target remote` takes.
    pub fn name(&self) -> String {
        match self {
            Self::Unix(_, path) => path.display().to_string(),
            Self::Tcp(listener) => listener.local_addr().map_or(String::new(), |a| a.to_string()),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            Self::Unix(listener, _) => listener.as_raw_fd(),
            Self::Tcp(listener) => listener.as_raw_fd(),
        }
    }

    /// Accepts the waiting connection if its user may be served, else returns the reason.
    fn accept(&self) -> Result<Stream, String> {
        let failed = |why: io::Error| format!("it failed: {why}");
        match self {
            Self::Unix(listener, _) => {
                let stream = listener.accept().map_err(failed)?.0;
                peer::allowed(peer::of_unix(&stream).map_err(failed)?)?;
                Ok(Stream::Unix(stream))
            }
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().map_err(failed)?;
                peer::allowed(peer::of_tcp(stream.local_addr().map_err(failed)?, from)?)?;
                stream.set_nodelay(true).map_err(failed)?;
                Ok(Stream::Tcp(stream))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            fs::remove_file(path).ok();
        }
    }
}

impl Stream {
    fn fd(&self) -> RawFd {
        match self {
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tcp(stream) => stream.as_raw_fd(),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.write_all(bytes),
            Self::Tcp(stream) => stream.write_all(bytes),
        }
    }
}

/// Serves until `over` returns true, or until the traced program has ended and nobody is connected. `say` receives
/// messages about connections.
pub fn serve(
    server: &mut Server,
    listener: &Listener,
    over: &dyn Fn() -> bool,
    say: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    let mut connection: Option<Connection> = None;
    while !over() {
        let limit = if server.is_tracing() { TICK } else { IDLE };
        let (new, more) = wait(listener.fd(), connection.as_ref().map(|c| c.stream.fd()), limit);
        if new {
            match listener.accept() {
                Err(why) => say(&format!("a connection was refused: {why}")),
                // One connection at a time: a second one is refused.
                Ok(_) if connection.is_some() => say("a second GDB was turned away"),
                Ok(stream) => {
                    server.connected();
                    connection = Some(Connection::new(stream));
                    say("GDB is connected");
                }
            }
        }
        let told = server.tick();
        server.said().iter().for_each(|line| say(line));
        let Some(open) = &mut connection else {
            if server.gone().is_some() {
                return Ok(());
            }
            continue;
        };
        let mut alive = told.is_none_or(|text| open.send(server, &text).is_ok());
        if more && alive {
            alive = open.read(server).unwrap_or_else(|why| {
                say(&format!("the connection is closed: {why}"));
                false
            });
        }
        if !alive {
            connection = None;
            server.disconnected();
            say(if server.is_tracing() { "GDB is gone; tracing goes on" } else { "GDB is gone" });
        }
    }
    Ok(())
}

struct Connection {
    stream: Stream,
    decoder: Decoder,
    acknowledge: bool,
    last: Vec<u8>,
}

impl Connection {
    fn new(stream: Stream) -> Self {
        Self { stream, decoder: Decoder::default(), acknowledge: true, last: Vec::new() }
    }

    /// Sends a reply, and before it any console output.
    fn send(&mut self, server: &mut Server, text: &[u8]) -> io::Result<()> {
        for said in server.console() {
            self.stream.write(&packet(format!("O{}", hex::bytes(said.as_bytes())).as_bytes()))?;
        }
        self.last = packet(text);
        self.stream.write(&self.last)
    }

    /// Handles the received bytes. Returns false if the connection is closed.
    fn read(&mut self, server: &mut Server) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        let count = self.stream.read(&mut bytes)?;
        for byte in &bytes[..count] {
            if !self.decoder.may_come(*byte) {
                // A web page may make a browser connect here. Its request begins with words.
                return Err(io::Error::other("this is not GDB"));
            }
            let Some(event) = self.decoder.push(*byte) else { continue };
            match event {
                Event::Ack => {}
                Event::Nack => {
                    let last = self.last.clone();
                    self.stream.write(&last)?;
                }
                Event::Bad => {
                    if self.acknowledge {
                        self.stream.write(b"-")?;
                    }
                }
                Event::Interrupt => {
                    if let Some(text) = server.interrupt() {
                        self.send(server, &text)?;
                    }
                }
                Event::Packet(text) => {
                    if self.acknowledge {
                        self.stream.write(b"+")?;
                    }
                    match server.answer(&text) {
                        Answer::Text(text) => self.send(server, &text)?,
                        Answer::Later => {}
                        Answer::Quiet(text) => {
                            self.send(server, &text)?;
                            self.acknowledge = false;
                        }
                        Answer::Last(text) => {
                            self.send(server, &text)?;
                            return Ok(false);
                        }
                        Answer::End => return Ok(false),
                    }
                }
            }
        }
        Ok(count > 0)
    }
}

/// Waits for a connection, or for data on the open one.
fn wait(listener: RawFd, stream: Option<RawFd>, limit: Duration) -> (bool, bool) {
    let polled = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut all = [polled(listener), polled(stream.unwrap_or(-1))];
    // SAFETY: the array is as long as is said. An error (a signal) ends the wait.
    let ready = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, limit.as_millis() as i32) };
    (ready > 0 && all[0].revents != 0, ready > 0 && all[1].revents != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let tcp = |text: &str| Address::parse(text).unwrap();
        assert_eq!(tcp(":2000"), Address::Tcp("127.0.0.1:2000".parse().unwrap()));
        assert_eq!(tcp("localhost:0"), Address::Tcp("127.0.0.1:0".parse().unwrap()));
        assert_eq!(tcp("[::1]:7"), Address::Tcp("[::1]:7".parse().unwrap()));
        assert_eq!(tcp("/tmp/a:b"), Address::Unix("/tmp/a:b".into()));
        assert_eq!(tcp("gdb.sock"), Address::Unix("gdb.sock".into()));
        assert!(Address::parse("0.0.0.0:2000").unwrap_err().to_string().contains("loopback"));
        assert!(Address::parse(":port").unwrap_err().to_string().contains("no port"));
    }
}
