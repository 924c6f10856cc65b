// SPDX-License-Identifier: MIT OR Apache-2.0
//! The value of `--on`: `ssh:[USER@]HOST[:PORT]` → words for ssh's command line.

use std::fmt;
use std::str::FromStr;

/// Another machine, as ssh names it. It displays as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `HOST` or `USER@HOST`; an IPv6 address without its brackets.
    pub destination: String,
    /// The port, if one is given; otherwise ssh's configuration decides.
    pub port: Option<u16>,
    written: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl FromStr for Target {
    type Err = String;

    /// # Errors
    /// Says which part is wrong, and what was expected.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected ssh:HOST, ssh:USER@HOST or ssh:USER@HOST:PORT";
        let rest = text.strip_prefix("ssh:").ok_or_else(|| expected.to_owned())?;
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let (host, port) = match place.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => {
                (host, Some(port.strip_prefix(':').ok_or_else(|| format!("after ]: {expected}"))?))
            }
            // Several colons are an IPv6 address without brackets.
            None => match place.rsplit_once(':') {
                Some((host, port)) if !host.contains(':') => (host, Some(port)),
                _ => (place, None),
            },
        };
        for (part, name) in [(Some(host), "host"), (user, "user")] {
            let Some(part) = part else { continue };
            if part.is_empty() {
                return Err(format!("the {name} is empty: {expected}"));
            }
            // ssh would take it for an option, which may run a command.
            if part.starts_with('-') {
                return Err(format!("the {name} begins with '-': {expected}"));
            }
            let is_odd = |c: char| c.is_whitespace() || c.is_control() || "'\"`$\\;&|<>(){}!*?".contains(c);
            if let Some(odd) = part.chars().find(|&c| is_odd(c)) {
                return Err(format!("the {name} contains {odd:?}: {expected}"));
            }
        }
        let port = port.map(|port| match port.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(format!("port {port:?}: expected a number from 1 to 65535")),
        });
        let destination = user.map_or_else(|| host.to_owned(), |user| format!("{user}@{host}"));
        Ok(Target { destination, port: port.transpose()?, written: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn targets() {
        let parsed = |text: &str| {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
            (target.destination, target.port)
        };
        assert_eq!(parsed("ssh:box"), ("box".into(), None));
        assert_eq!(parsed("ssh:root@box.example:2222"), ("root@box.example".into(), Some(2222)));
        assert_eq!(parsed("ssh:root@[fe80::1%eth0]:22"), ("root@fe80::1%eth0".into(), Some(22)));
        assert_eq!(parsed("ssh:[::1]"), ("::1".into(), None));
        assert_eq!(parsed("ssh:::1"), ("::1".into(), None));
        // A user may have the form of an address of mail.
        assert_eq!(parsed("ssh:me@corp@box"), ("me@corp@box".into(), None));
    }

    #[test]
    fn what_ssh_would_take_for_something_else_is_refused() {
        let cases = [
            ("box", "expected ssh:HOST"),
            ("ssh:", "the host is empty"),
            ("ssh:@box", "the user is empty"),
            ("ssh:root@", "the host is empty"),
            ("ssh:-oProxyCommand=x", "the host begins with '-'"),
            ("ssh:-l@box", "the user begins with '-'"),
            ("ssh:root@-box", "the host begins with '-'"),
            ("ssh:a b", "the host contains ' '"),
            ("ssh:a\nb", "the host contains '\\n'"),
            ("ssh:$(x)", "the host contains '$'"),
            ("ssh:box:", "port \"\""),
            ("ssh:box:0", "port \"0\""),
            ("ssh:box:70000", "port \"70000\""),
            ("ssh:[::1]22", "after ]"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<Target>().unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }
}
