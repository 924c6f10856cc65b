// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides who may ask.
//!
//! In: a request's method, its hosts and its path. Out: the path behind the token, or a refusal, which has no content.

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{self, Read as _};

/// Bytes of a token; twice as many hexadecimal digits.
const TOKEN: usize = 24;

/// A port and its token.
#[derive(Debug, Clone)]
pub struct Door {
    port: u16,
    token: String,
}

/// A request that gets no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is meant for another host, or for several.
    Host,
    /// The token is wrong or missing.
    Token,
    /// It wants to change something.
    Method,
}

impl Door {
    /// A door with a random token.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new(port: u16) -> io::Result<Self> {
        let mut bytes = [0; TOKEN];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let mut token = String::new();
        for byte in bytes {
            let _ = write!(token, "{byte:02x}");
        }
        Ok(Door { port, token })
    }

    /// The address of the first page.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/{}/", self.port, self.token)
    }

    /// The path behind the token, with its first slash. `hosts` are the Host headers and the authority of the request's target,
    /// if it has one.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn admit<'p>(&self, method: &str, hosts: &[&[u8]], path: &'p str) -> Result<&'p str, Refusal> {
        let own = |host: &&[u8]| {
            ["127.0.0.1", "localhost"].iter().any(|name| *host == format!("{name}:{}", self.port).as_bytes())
        };
        if hosts.is_empty() || !hosts.iter().all(own) {
            return Err(Refusal::Host);
        }
        let (given, rest) = match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
            Some((given, _)) => (given, &path[1 + given.len()..]),
            None => ("", ""),
        };
        if !same(given.as_bytes(), self.token.as_bytes()) {
            return Err(Refusal::Token);
        }
        match method {
            "GET" | "HEAD" => Ok(rest),
            _ => Err(Refusal::Method),
        }
    }
}

/// Compares in a time that depends on the length of `given` only, so that nobody can find a token digit by digit.
fn same(given: &[u8], token: &[u8]) -> bool {
    let differs = given.len() != token.len();
    let bits = given.iter().zip(token).fold(0, |bits, (a, b)| black_box(bits | (a ^ b)));
    !differs & (black_box(bits) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        Door { port: 4242, token: "5ec2e7".into() }
    }

    #[test]
    fn only_the_token_opens() {
        let door = door();
        let ask = |path| door.admit("GET", &[b"127.0.0.1:4242"], path);
        assert_eq!(ask("/5ec2e7/"), Ok("/"));
        assert_eq!(ask("/5ec2e7/run/0/flow"), Ok("/run/0/flow"));
        let wrong =
            ["", "/", "//", "/5ec2e7", "/5ec2e", "/5ec2e70/", "/5EC2E7/", "//5ec2e7/", "/x/../5ec2e7/"];
        for path in wrong.into_iter().chain(["/%35ec2e7/", "/5ec2e7%2f", "5ec2e7/", "/é/", "/run/0/flow"]) {
            assert_eq!(ask(path), Err(Refusal::Token), "{path}");
        }
    }

    #[test]
    fn other_hosts_and_methods_are_refused() {
        let door = door();
        assert_eq!(door.admit("HEAD", &[b"localhost:4242"], "/5ec2e7/"), Ok("/"));
        let hosts: [&[&[u8]]; 8] = [
            &[],
            &[b"127.0.0.1"],
            &[b"127.0.0.1:80"],
            &[b"evil.example:4242"],
            &[b"127.0.0.1:4242.evil.example"],
            &[b"127.0.0.1:4242", b"evil.example"],
            &[b"[::1]:4242"],
            &[b"\xff\0"],
        ];
        for hosts in hosts {
            assert_eq!(door.admit("GET", hosts, "/5ec2e7/"), Err(Refusal::Host), "{hosts:?}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "get", ""] {
            assert_eq!(door.admit(method, &[b"127.0.0.1:4242"], "/5ec2e7/"), Err(Refusal::Method));
        }
    }

    #[test]
    fn tokens_are_long_and_differ() {
        let tokens = [Door::new(1).unwrap().token, Door::new(1).unwrap().token];
        assert_ne!(tokens[0], tokens[1]);
        assert_eq!(tokens[0].len(), 2 * TOKEN);
    }
}
