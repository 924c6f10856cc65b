// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the kernel's coverage counters from the memory of a stopped guest.
//!
//! Input: a stopped guest, and its `kallsyms`. Output: an archive in the form of `/sys/kernel/debug/gcov`. The guest
//! executes nothing for it. At a mark in user mode, or where a window opens or closes, the observer holds it; or, where guest
//! time follows the host's, it stops itself by writing to a port. Then the host reads its memory.
//!
//! Of windows, the growth of the counters is added up as they close ([`WindowSum`]): a run has one archive, however many
//! windows there were.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use kprism_gcov::memory::{Roots, read, symbol};
use kprism_gcov::windows::{Facts, Reading, WindowSum};
use kprism_kmem::paging::Paged;
use kprism_layout::GcovFiles;
use serde_json::{Value, json};

use crate::archive::Archive;
use crate::error::{Context, Error, Result};
use crate::hold::{Held, Holder};
use crate::machine::memory::GuestMemory;
use crate::options::CounterWindows;
use crate::qemu::Running;
use crate::snapshot::wait_stopped;

/// Reads counters each time the guest stops for it.
#[derive(Debug)]
pub(crate) struct CounterReader {
    kallsyms: PathBuf,
    /// The counters' lists and the kernel's page table, once they were looked up.
    roots: Option<(Roots, u64)>,
    /// Folder of the run.
    folder: PathBuf,
    scratch: PathBuf,
    next: Option<String>,
    /// The observer, which holds the guest. Without it, the machine has stopped itself.
    holder: Option<Holder>,
    windows: Option<Windows>,
}

/// The windows so far.
#[derive(Debug)]
struct Windows {
    opens_at_begin: bool,
    sum: WindowSum,
    spans: Vec<(Option<u64>, Option<u64>)>,
}

/// The windows of a run in which coverage counters were added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CountedWindows {
    /// Number of windows, and what is to be said of the counters in them.
    pub facts: Facts,
    /// Guest time in ns at which each opened and closed. `None`: where the command began, or ended.
    pub spans: Vec<(Option<u64>, Option<u64>)>,
    /// Number of times that a condition could not be computed, as the observer says; `None` if it left no account.
    pub faults: Option<u64>,
    /// Number of calls and intervals that the observer did not follow to their end, because too many were open.
    pub forgotten: Option<u64>,
    /// Number of windows that the observer opened.
    pub observed: Option<u64>,
    /// Why the observer stopped early, if it did.
    pub stopped: Option<String>,
}

impl CountedWindows {
    /// Adds the observer's own account, which it left in the folder of its streams.
    pub(crate) fn with_account(mut self, streams: &Path) -> Self {
        let account = fs::read(streams.join("counts.json")).ok();
        let account: Value = account.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        self.faults = account["condition_faults"].as_u64();
        self.forgotten = account["condition_forgotten"].as_u64();
        self.observed = account["windows"].as_u64();
        self.stopped = account["stopped"].as_str().map(str::to_owned);
        self
    }
}

/// A place at which the guest is held.
enum Place {
    /// At the mark before or after the command; the archive's name.
    Mark(String),
    /// A window opens or closes, at this guest time.
    Window { opens: bool, ns: u64 },
}

impl CounterReader {
    pub fn new(kallsyms: PathBuf, folder: &Path, scratch: &Path, holder: Option<Holder>) -> Self {
        let (folder, scratch) = (folder.to_owned(), scratch.to_owned());
        Self { kallsyms, roots: None, folder, scratch, next: None, holder, windows: None }
    }

    /// The same, for windows between the observer's conditions.
    pub fn in_windows(self, windows: Option<CounterWindows>) -> Self {
        let of = |windows: CounterWindows| Windows {
            opens_at_begin: windows.opens_at_begin,
            sum: WindowSum::default(),
            spans: Vec::new(),
        };
        Self { windows: windows.map(of), ..self }
    }

    /// Announces that the guest comes to a stop mark, or is there. `name` is that of the reading's archive, as in [`GcovFiles`];
    /// there are several readings before the window, and one after it.
    pub fn come(&mut self, name: String) {
        self.next = Some(name);
    }

    /// Reads counters if the guest has stopped for it, and resumes it.
    pub fn read(&mut self, qemu: &mut Running) -> Result<()> {
        while let Some(place) = self.held(qemu)? {
            let found = self.counters(qemu)?;
            match place {
                Place::Mark(name) => self.mark(&name, found)?,
                Place::Window { opens, ns } => self.edge(opens, ns, found),
            }
            match &mut self.holder {
                Some(holder) => holder.release()?,
                None => drop(qemu.qmp.call("cont", json!({}))?),
            }
        }
        Ok(())
    }

    /// Lets the guest go, wherever it is held from now on: nobody will read its counters.
    pub fn give_up(&mut self) {
        self.holder = None;
    }

    /// The windows, once the run has ended.
    pub fn counted(&mut self) -> Option<CountedWindows> {
        let Windows { sum, spans, .. } = self.windows.take()?;
        Some(CountedWindows { facts: sum.facts, spans, ..CountedWindows::default() })
    }

    /// Waits for the mark that was announced, or returns the edge of a window at which the guest is held by then.
    fn held(&mut self, qemu: &mut Running) -> Result<Option<Place>> {
        let held = match (&mut self.holder, &self.next) {
            (Some(holder), None) if self.windows.is_some() => holder.at_window()?,
            (_, None) => None,
            (Some(holder), Some(_)) => Some(holder.held()?),
            (None, Some(_)) => {
                wait_stopped(qemu)?;
                Some(Held::Mark)
            }
        };
        Ok(match held {
            Some(Held::Window { opens, ns }) => Some(Place::Window { opens, ns }),
            Some(Held::Mark) => self.next.take().map(Place::Mark),
            None => None,
        })
    }

    /// Reads all counters of the guest, which stands still.
    fn counters(&mut self, qemu: &mut Running) -> Result<Reading> {
        let (roots, table) = match self.roots {
            Some(known) => known,
            None => *self.roots.insert(roots(&self.kallsyms)?),
        };
        let piece = self.scratch.join("counters");
        let memory = GuestMemory::new(&mut qemu.qmp, &piece);
        // The lab boots with nokaslr: the image is at its link address. Page tables have four levels (la57 is off).
        read(&mut Paged::new(memory, table, 0, false), roots).map_err(|error| Error::Qemu {
            reason: format!("the kernel's coverage counters in the guest's memory: {error}"),
        })
    }

    /// The command begins, or has ended.
    fn mark(&mut self, name: &str, found: Reading) -> Result<()> {
        // The name comes from the guest, whose programs may be anybody's.
        if ![GcovFiles::BEFORE, GcovFiles::AFTER].contains(&name) {
            return Err(Error::BadFile {
                path: name.into(),
                reason: "the guest gave its counters a name that is not theirs".into(),
            });
        }
        let files = GcovFiles::of(&self.folder);
        fs::create_dir_all(files.folder()).at("create", files.folder())?;
        write(&found, &files.folder().join(name))?;
        let Some(windows) = &mut self.windows else { return Ok(()) };
        if name == GcovFiles::BEFORE {
            if windows.opens_at_begin {
                windows.spans.push((None, None));
                windows.sum.open(found);
            }
            return Ok(());
        }
        windows.sum.close(&found);
        let (sum, facts) = std::mem::take(&mut windows.sum).finish(&found);
        windows.sum.facts = facts;
        write(&sum, &files.windows())
    }

    /// A window opens or closes.
    fn edge(&mut self, opens: bool, ns: u64, found: Reading) {
        let Some(windows) = &mut self.windows else { return };
        if opens {
            windows.spans.push((Some(ns), None));
            windows.sum.open(found);
        } else {
            windows.sum.close(&found);
            if let Some((_, until)) = windows.spans.last_mut() {
                *until = Some(ns);
            }
        }
    }
}

/// Finds the counters' lists and the page table among the kernel's symbols.
fn roots(kallsyms: &Path) -> Result<(Roots, u64)> {
    let symbols = fs::read(kallsyms).at("read", kallsyms)?;
    let roots = Roots::find(&symbols).zip(symbol(&symbols, "init_top_pgt"));
    roots.ok_or_else(|| Error::BadFile {
        path: kallsyms.to_owned(),
        reason: "the guest's kernel has no gcov_info_head and init_top_pgt: it needs CONFIG_GCOV_KERNEL and \
                 CONFIG_KALLSYMS_ALL"
            .into(),
    })
}

/// Writes counters as an archive.
fn write(found: &Reading, path: &Path) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(path).at("create", path)?));
    for (object, data) in found {
        archive.file(object.trim_start_matches('/'), 0o400, &data.to_bytes()).at("write", path)?;
    }
    archive.finish().and_then(|mut output| output.flush()).at("write", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_observers_account_is_taken_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let none = CountedWindows::default().with_account(dir.path());
        assert_eq!(none, CountedWindows::default(), "no account, no numbers");
        let text = r#"{"windows":3,"condition_faults":1,"condition_forgotten":0,"stopped":"why"}"#;
        fs::write(dir.path().join("counts.json"), text).unwrap();
        let told = CountedWindows::default().with_account(dir.path());
        assert_eq!((told.observed, told.faults, told.forgotten), (Some(3), Some(1), Some(0)));
        assert_eq!(told.stopped.as_deref(), Some("why"));
    }
}
