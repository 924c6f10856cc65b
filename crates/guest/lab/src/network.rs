// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guest's network: QEMU's user mode network (slirp), which reaches what this machine reaches, and of which nothing but the
//! ports that are named can be reached from here.
//!
//! A guest with a network is never the same twice: packets come when the host's threads bring them. So there is none unless
//! the user asks for one.

use std::fmt;

/// The guest's network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Network {
    /// Only the loopback device.
    #[default]
    None,
    /// QEMU's user mode network.
    User,
}

/// A port of this machine that leads into the guest. Only programs of this machine can connect to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    protocol: Protocol,
    host: u16,
    guest: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

impl Forward {
    /// Parses `HOST:GUEST`, two ports, with `/udp` after them for UDP.
    ///
    /// # Errors
    /// It is not of that form.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let (ports, protocol) = match text.rsplit_once('/') {
            Some((ports, "tcp")) => (ports, Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some((_, other)) => return Err(format!("`{other}` is no protocol: tcp or udp is expected")),
            None => (text, Protocol::Tcp),
        };
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let both = ports.split_once(':').and_then(|(host, guest)| Some((port(host)?, port(guest)?)));
        let (host, guest) =
            both.ok_or("expected a port of this machine and one of the guest, as in 8080:80")?;
        Ok(Self { protocol, host, guest })
    }
}

/// As [`Forward::parse`] reads it.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.guest)?;
        if self.protocol == Protocol::Udp { f.write_str("/udp") } else { Ok(()) }
    }
}

impl Network {
    /// QEMU's argument for the device, which is a part of the machine.
    pub(crate) fn device(self) -> Option<String> {
        // Without a ROM, the firmware does not try to boot from it.
        (self == Self::User).then(|| "virtio-net-pci,netdev=net,romfile=".to_owned())
    }

    /// QEMU's argument for what the device is connected to.
    pub(crate) fn backend(self, ports: &[Forward]) -> Option<String> {
        let forwards = ports.iter().map(|Forward { protocol, host, guest }| {
            format!(",hostfwd={protocol}:127.0.0.1:{host}-:{guest}")
        });
        (self == Self::User).then(|| format!("user,id=net{}", forwards.collect::<String>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_they_are_written() {
        for text in ["8080:80", "53:53/udp"] {
            assert_eq!(Forward::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Forward::parse("1:2/tcp").unwrap().to_string(), "1:2");
        for text in ["", "80", "0:80", "80:65536", "a:b", "1:2/sctp", "1:2,guestfwd=x:3", "1:2:3"] {
            assert!(Forward::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_this_machine_reaches_the_guest() {
        let ports = [Forward::parse("8080:80").unwrap(), Forward::parse("5353:53/udp").unwrap()];
        assert_eq!(
            Network::User.backend(&ports).unwrap(),
            "user,id=net,hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=udp:127.0.0.1:5353-:53"
        );
        assert_eq!(Network::None.backend(&[]), None);
    }
}
