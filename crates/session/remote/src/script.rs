// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell script that ssh runs on the target, and the lines that it answers.
//!
//! The target needs a POSIX shell, `cat`, `chmod`, `mkdir`, `rm`, `uname`, `id` and `head -c` (or `dd`): busybox has all of
//! them. The script is one line between single quotes without any of `'`, `!` and `\`, so every login shell passes it on as it
//! is. Only a number is put into it; words of the command line go through the connection, and no shell sees them.

/// The script. Its steps:
///
/// - The program's size comes with `go`: which program it is depends on the processor.
/// - `z` removes the folder, also on signals and however the script ends.
/// - The folder's name cannot be guessed, and `mkdir` fails if it exists, also as a link.
/// - An empty executable file is a shell script; on a file system without execution it fails.
/// - `head` takes the program and no byte more. If `cat` finds no space, the rest is read nevertheless, as the next folder gets
///   the program again.
const SCRIPT: &str = r#"
n=kprism-NONCE; u=$(umask); umask 077; d=;
z() { [ -z "$d" ] || rm -rf "$d"; d=; };
trap z EXIT; trap "exit 129" HUP INT TERM PIPE;
echo "$n hello $(uname -s) $(uname -m)";
read a s || exit 1; [ "$a" = go ] || exit 1;
if head -c 0 </dev/null >/dev/null 2>&1; then t() { head -c $s; }; else t() { dd bs=1 count=$s 2>/dev/null; }; fi;
for b in "$TMPDIR" /tmp /var/tmp "$XDG_RUNTIME_DIR" /dev/shm "$HOME" end; do
case $b in
end) echo "$n none"; exit 1 ;;
/*) ;;
*) continue ;;
esac;
d=$b/.$n;
mkdir "$d" 2>/dev/null || { d=; echo "$n no cannot be written to: $b"; continue; };
{ : >"$d/kprism" && chmod 700 "$d/kprism"; } 2>/dev/null || { z; echo "$n no cannot be written to: $b"; continue; };
"$d/kprism" </dev/null >/dev/null 2>&1 || { z; echo "$n no does not execute programs (noexec): $b"; continue; };
echo "$n send $b";
t | { cat >"$d/kprism" 2>/dev/null || { cat >/dev/null; false; }; } || { z; echo "$n no has no space for it: $b"; continue; };
v=$("$d/kprism" --version 2>&1 </dev/null) || { echo "$n bad $b: $v"; exit 1; };
break;
done;
echo "$n run $d";
umask $u;
"$d/kprism" SERVE "$d"
"#;

/// The command for ssh. `nonce`: 32 hexadecimal digits.
pub fn command(nonce: &str) -> String {
    let line = SCRIPT.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace("NONCE", nonce);
    format!("exec sh -c '{}'", line.replace("SERVE", kprism_placed::SERVE))
}

/// The answer to [`Line::Hello`]: a program of this many bytes will be sent.
pub fn go(size: u64) -> String {
    format!("go {size}\n")
}

/// A line of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// System and processor, as uname has them.
    Hello {
        /// `Linux`.
        system: String,
        /// `x86_64`.
        machine: String,
    },
    /// A folder cannot be used: why, and its path.
    No(String),
    /// The program is awaited.
    Send,
    /// No folder can be used.
    None,
    /// The copy cannot be run: its folder, and the words of the shell.
    Bad(String),
    /// The copy runs, in this folder; frames follow.
    Run(String),
}

impl Line {
    /// Parses a line. `None`: it is not the script's, but of the login shell's start files.
    pub fn parse(nonce: &str, line: &str) -> Option<Line> {
        let rest = line.trim_end().strip_prefix("kprism-")?.strip_prefix(nonce)?.strip_prefix(' ')?;
        let (kind, value) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(match kind {
            "hello" => {
                let (system, machine) = value.split_once(' ')?;
                Line::Hello { system: system.into(), machine: machine.into() }
            }
            "no" => Line::No(value.into()),
            "send" => Line::Send,
            "none" => Line::None,
            "bad" => Line::Bad(value.into()),
            "run" => Line::Run(value.into()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_login_shell_can_take_it() {
        let command = command("00ff");
        let inner = command.strip_prefix("exec sh -c '").unwrap().strip_suffix('\'').unwrap();
        assert!(!inner.contains(['\'', '!', '\\', '\n']), "{inner}");
        assert!(inner.contains("n=kprism-00ff; u=") && inner.contains(" serve-through-ssh "));
    }

    #[test]
    fn lines() {
        let parse = |line| Line::parse("00ff", line);
        let hello = Line::Hello { system: "Linux".into(), machine: "x86_64".into() };
        assert_eq!(parse("kprism-00ff hello Linux x86_64\n"), Some(hello));
        assert_eq!(
            parse("kprism-00ff no cannot be written to: /a b"),
            Some(Line::No("cannot be written to: /a b".into()))
        );
        assert_eq!(parse("kprism-00ff send /tmp"), Some(Line::Send));
        assert_eq!(parse("kprism-00ff run /tmp/.kprism-00ff"), Some(Line::Run("/tmp/.kprism-00ff".into())));
        for other in ["", "Welcome!", "kprism-00fe send", "kprism-00ff what", "kprism-00ff hello Linux"] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }
}
