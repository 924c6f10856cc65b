// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program on a terminal of its own: a pty, whose screen vt100 interprets.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Longest wait for the screen, or for the end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The colours of a terminal, by number.
const PALETTE: [&str; 16] = [
    "#14161b", "#e06c75", "#8cc265", "#d7a657", "#6ca8f0", "#c678dd", "#4cc2cf", "#d4d7de", "#767c88",
    "#ff8a92", "#a6e07d", "#f2c373", "#8fc0ff", "#de9bf0", "#78dbe6", "#ffffff",
];

/// A running program and its screen.
pub struct Pty {
    main: File,
    /// Held open, so that its settings can be read after the program's end.
    other: OwnedFd,
    parser: vt100::Parser,
    child: Child,
    /// All bytes of the program.
    pub bytes: Vec<u8>,
    before: String,
}

impl Pty {
    /// Starts it on a terminal of this size.
    pub fn start(mut command: Command, rows: u16, columns: u16) -> Self {
        let (mut main, mut other) = (-1, -1);
        let size = winsize(rows, columns);
        // SAFETY: all pointers are to values on the stack, or null where openpty(3) allows that.
        let opened =
            unsafe { libc::openpty(&mut main, &mut other, std::ptr::null_mut(), std::ptr::null(), &size) };
        assert_eq!(opened, 0, "a pty");
        // SAFETY: openpty has just opened them, nobody else has them.
        let (main, other) = unsafe { (File::from_raw_fd(main), OwnedFd::from_raw_fd(other)) };
        // SAFETY: fcntl on an open file.
        unsafe { libc::fcntl(main.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let copy = || other.try_clone().unwrap();
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: setsid and ioctl are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let before = settings(&other);
        let child = command.spawn().expect("the program starts");
        let parser = vt100::Parser::new(cells(rows), cells(columns), 0);
        Pty { main, other, parser, child, bytes: Vec::new(), before }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            match self.main.read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => {
                    self.parser.process(&bytes[..n]);
                    self.bytes.extend_from_slice(&bytes[..n]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// The screen's text.
    pub fn text(&self) -> String {
        self.parser.screen().contents()
    }

    /// Writes the screen as a page, if `KPRISM_SCREENSHOTS` names a folder: scripts/pictures.sh photographs it.
    pub fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("KPRISM_SCREENSHOTS") else { return };
        let screen = self.parser.screen();
        let (rows, columns) = screen.size();
        let mut text = String::new();
        for row in 0..rows.get() {
            for cell in (0..columns.get()).filter_map(|column| screen.cell(row, column)) {
                let color = |color, default: &'static str| match color {
                    vt100::Color::Idx(n) => PALETTE[usize::from(n) % PALETTE.len()],
                    _ => default,
                };
                let (mut ink, mut paper) =
                    (color(cell.fgcolor(), "#d4d7de"), color(cell.bgcolor(), "#14161b"));
                if cell.inverse() {
                    std::mem::swap(&mut ink, &mut paper);
                }
                let (weight, part) =
                    (if cell.bold() { 700 } else { 400 }, if cell.dim() { 0.65 } else { 1.0 });
                let shown = match cell.contents() {
                    "" => " ".to_owned(),
                    own => own.replace('&', "&amp;").replace('<', "&lt;"),
                };
                text += &format!(
                    "<b style='color:{ink};background:{paper};font-weight:{weight};opacity:{part}'>{shown}</b>"
                );
            }
            text.push('\n');
        }
        let page = format!(
            "<!doctype html><meta charset=utf-8><body style='margin:0;padding:12px;background:#14161b'>\
             <pre style='margin:0;font:15px/20px monospace'>{text}</pre>"
        );
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), page)
            .expect("the folder can be written");
    }

    /// Waits until the screen is as `is` wants it, and returns its text.
    pub fn until(&mut self, what: &str, is: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            self.read();
            let text = self.text();
            if is(&text) {
                return text;
            }
            assert!(begun.elapsed() < PATIENCE, "waited for {what}; the screen is\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the program has taken the terminal for its screens: keys before that are lines for the kernel.
    pub fn until_taken(&mut self) {
        let begun = Instant::now();
        while !self.parser.screen().alternate_screen() {
            assert!(begun.elapsed() < PATIENCE, "the screen is\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
            self.read();
        }
    }

    /// Types.
    pub fn keys(&mut self, keys: &str) {
        self.main.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Gives the terminal another size.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        self.parser.screen_mut().set_size(cells(rows), cells(columns));
        let size = winsize(rows, columns);
        // SAFETY: TIOCSWINSZ reads the structure.
        unsafe { libc::ioctl(self.main.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the child was not waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Stops the program, and waits until it stands.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        let stands = || {
            let text = std::fs::read_to_string(&stat).unwrap();
            text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        };
        while !stands() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Waits for its end. The terminal must be as it was before: settings, cursor, no other screen.
    pub fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        let status = loop {
            self.read();
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end; the screen is\n{}", self.text());
            std::thread::sleep(Duration::from_millis(20));
        };
        self.read();
        assert_eq!(settings(&self.other), self.before, "the terminal's settings");
        let screen = self.parser.screen();
        assert!(!screen.alternate_screen(), "the other screen is left");
        assert!(!screen.hide_cursor(), "the cursor is seen");
        status
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // Already gone, as a rule.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cells(n: u16) -> NonZero<u16> {
    NonZero::new(n).expect("a size")
}

fn winsize(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The terminal's settings, to compare.
fn settings(of: &OwnedFd) -> String {
    // SAFETY: all zero is a valid termios; tcgetattr fills it.
    let found = unsafe {
        let mut found: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(of.as_raw_fd(), &mut found), 0, "settings of the terminal");
        found
    };
    format!(
        "{:x} {:x} {:x} {:x} {:?}",
        found.c_iflag, found.c_oflag, found.c_cflag, found.c_lflag, found.c_cc
    )
}
