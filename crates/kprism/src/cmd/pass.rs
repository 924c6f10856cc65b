// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes the output of a command that runs elsewhere on: in a guest, or on another machine.

use std::io::{IsTerminal as _, Write};

use kprism_record::guest;
use kprism_session::Progress;

/// Passes the output of a guest's command on, to standard output and error.
pub struct Output<'a> {
    out: &'a mut dyn Write,
    progress: &'a Progress,
    /// A live line is shown. It goes when output comes to the same terminal.
    live: bool,
    /// The command's last line on the terminal is complete: a live line after it overwrites nothing.
    line_is_complete: bool,
    /// Somebody reads standard output. If nobody does, the recording goes on nevertheless.
    open: bool,
}

impl<'a> Output<'a> {
    pub fn new(out: &'a mut dyn Write, progress: &'a Progress) -> Self {
        Output { out, progress, live: true, line_is_complete: true, open: true }
    }

    pub fn pass(&mut self, p: kprism_lab::Progress<'_>) {
        match p {
            kprism_lab::Progress::Stdout(bytes) if self.open => {
                if std::io::stdout().is_terminal() {
                    self.make_room(bytes);
                }
                self.open = self.out.write_all(bytes).and_then(|()| self.out.flush()).is_ok();
            }
            kprism_lab::Progress::Stdout(_) => {}
            kprism_lab::Progress::Stderr(bytes) => {
                self.make_room(bytes);
                // If nobody reads our standard error, there is nowhere to say so.
                let _ = std::io::stderr().write_all(bytes);
            }
            kprism_lab::Progress::Written(_) if !self.line_is_complete => {}
            kprism_lab::Progress::Written(_) => {
                self.live = true;
                guest::show(self.progress, p);
            }
            other => guest::show(self.progress, other),
        }
    }

    /// Before these bytes go to the terminal.
    fn make_room(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last() {
            self.line_is_complete = *last == b'\n';
        }
        if std::mem::take(&mut self.live) {
            self.progress.clear();
        }
    }
}
