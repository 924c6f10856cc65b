// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runs that are shown, and the reply to each route.
//!
//! A page is made from the run as it is when it is asked for, and holds the recording's identity (`Manifest::run_id`). Data
//! for it are only given of that recording: the identity is compared before the data are read and after, so a page never
//! mixes two recordings. One reply of a run is made at a time, since it may decode the run; replies that were made already
//! are given at once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::StatusCode;
use kprism_report::html;
use kprism_session::Progress;
use kprism_store::{Manifest, Run};
use serde_json::json;

use crate::data::{Sources, answer};
use crate::door::Door;
use crate::kept::Kept;
use crate::reply::Reply;
use crate::route::{Asked, Route, View, Wrong, route};
use crate::waiting::Jobs;
use crate::{index, pages};

/// Bytes of answers that are remembered.
const KEPT: usize = 64 << 20;
/// Requests that may wait for others of the same run.
const WAITING: usize = 6;

/// Settings of a site.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Folders of the runs.
    pub runs: Vec<PathBuf>,
    /// Places of debug information and sources.
    pub sources: Sources,
}

/// A run's folder.
#[derive(Debug)]
struct Entry {
    path: PathBuf,
    /// Held while a reply is made.
    busy: Mutex<()>,
    waiting: AtomicUsize,
}

/// The runs and what was answered.
#[derive(Debug)]
pub struct Site {
    runs: Vec<Arc<Entry>>,
    sources: Sources,
    kept: Mutex<Kept>,
    jobs: Jobs,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic is answered with an error; the next reply begins anew.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Entry {
    /// The run as it is now.
    fn open(&self) -> Result<(Run, Manifest), String> {
        let opened = Run::open(&self.path).and_then(|run| Ok((run.manifest()?, run)));
        match opened {
            Ok((manifest, run)) => Ok((run, manifest)),
            Err(error) if !self.path.exists() => {
                Err(format!("{}: the run was removed or renamed ({error})", self.path.display()))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Waits for the requests before this one. `None` if too many do.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= WAITING {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let turn = lock(&self.busy);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Some(turn)
    }

    /// The page of a view, made of the run as it is now.
    fn page(&self, view: View, sources: &Sources, runs: usize, progress: &Progress) -> Reply {
        let Some(_turn) = self.turn() else {
            return Reply::message(StatusCode::SERVICE_UNAVAILABLE, BUSY);
        };
        let gone = |reason: String| Reply::message(StatusCode::GONE, &reason);
        let (run, manifest) = match self.open() {
            Ok(found) => found,
            Err(reason) => return gone(reason),
        };
        let id = manifest.run_id();
        let made = pages::page(&run, view, sources, progress);
        match self.open() {
            Ok((_, now)) if now.run_id() == id => {}
            Ok(_) => return Reply::message(StatusCode::CONFLICT, &self.again()),
            Err(reason) => return gone(reason),
        }
        let facts = json!({"id": id, "run": self.path.display().to_string(), "runs": runs});
        let page = made.and_then(|page| Ok(html::served(page, &facts)?));
        match page {
            Ok(page) => Reply::page(page),
            Err(error) => Reply::message(StatusCode::UNPROCESSABLE_ENTITY, &format!("{error:#}")),
        }
    }

    fn again(&self) -> String {
        format!(
            "{}: the run was recorded anew since this page was made: load the page again",
            self.path.display()
        )
    }
}

const BUSY: &str = "too many requests wait for this run to be decoded; ask again in a moment";

impl Site {
    /// A site of these runs. They need not be there yet, or for ever.
    pub fn new(settings: Settings) -> Self {
        let entry = |path| Arc::new(Entry { path, busy: Mutex::default(), waiting: AtomicUsize::new(0) });
        Site {
            runs: settings.runs.into_iter().map(entry).collect(),
            sources: settings.sources,
            kept: Mutex::new(Kept::new(KEPT)),
            jobs: Jobs::default(),
        }
    }

    /// The reply to a request: its method, its hosts, the path and the query of its target. A browser, which `shows` pages to
    /// somebody, gets one about the progress of those that take long; a program waits for the page itself.
    pub fn reply(
        &self,
        door: &Door,
        method: &str,
        hosts: &[&[u8]],
        path: &str,
        query: Option<&str>,
        shows: bool,
    ) -> Reply {
        let rest = match door.admit(method, hosts, path) {
            Ok(rest) => rest,
            Err(refusal) => return Reply::refused(refusal),
        };
        match route(rest, query) {
            Ok(Route::Index) => self.index(),
            Ok(Route::Page(run, view)) => self.page(run, view, shows && method == "GET"),
            Ok(Route::Progress(run, view)) if run < self.runs.len() => self.jobs.progress((run, view)),
            Ok(Route::Progress(run, _)) => no_run(run),
            Ok(Route::Diff(old, new)) => self.diff(old, new),
            Ok(Route::Data(run, id, asked)) => self.data(run, &id, &asked),
            Err(Wrong::Path) => Reply::message(StatusCode::NOT_FOUND, "There is no such page."),
            Err(Wrong::Query(why)) => Reply::no_data(StatusCode::BAD_REQUEST, &format!("the query: {why}")),
        }
    }

    fn index(&self) -> Reply {
        let rows: Vec<index::Row> = self
            .runs
            .iter()
            .map(|entry| index::Row { name: entry.path.display().to_string(), found: entry.open() })
            .collect();
        if let [index::Row { found: Ok((run, _)), .. }] = &rows[..]
            && let [view] = pages::views(run)[..]
        {
            return Reply::see(format!("run/0/{}", view.word()));
        }
        Reply::plain(index::page(&rows))
    }

    fn page(&self, number: usize, view: View, shows: bool) -> Reply {
        let Some(entry) = self.runs.get(number) else { return no_run(number) };
        let (own, sources, runs) = (Arc::clone(entry), self.sources.clone(), self.runs.len());
        let make = move |progress: &Progress| own.page(view, &sources, runs, progress);
        match shows {
            true => self.jobs.page((number, view), &entry.path.display().to_string(), make),
            false => make(&Progress::silent()),
        }
    }

    fn diff(&self, old: usize, new: usize) -> Reply {
        let (Some(first), Some(second)) = (self.runs.get(old), self.runs.get(new)) else {
            return no_run(if old < self.runs.len() { new } else { old });
        };
        // In the order of their numbers, so that two requests cannot wait for each other.
        let mut entries = vec![self.runs.get(old.min(new)), self.runs.get(old.max(new))];
        entries.dedup_by_key(|entry| entry.map(Arc::as_ptr));
        let turns: Option<Vec<_>> = entries.into_iter().flatten().map(|entry| entry.turn()).collect();
        let Some(_turns) = turns else { return Reply::message(StatusCode::SERVICE_UNAVAILABLE, BUSY) };
        let ids = || [first, second].map(|entry| entry.open().map(|(_, manifest)| manifest.run_id()));
        let before = ids();
        if let Some(Err(reason)) = before.iter().find(|id| id.is_err()) {
            return Reply::message(StatusCode::GONE, reason);
        }
        let made = pages::diff(&first.path, &second.path, &Progress::silent());
        if ids() != before {
            return Reply::message(StatusCode::CONFLICT, &first.again());
        }
        match made {
            Ok(page) => Reply::page(page),
            Err(error) => Reply::message(StatusCode::UNPROCESSABLE_ENTITY, &format!("{error:#}")),
        }
    }

    fn data(&self, number: usize, id: &str, asked: &Asked) -> Reply {
        let Some(entry) = self.runs.get(number) else {
            return Reply::no_data(StatusCode::NOT_FOUND, "there is no such run");
        };
        let is_same = || match entry.open() {
            Ok((run, manifest)) if manifest.run_id() == id => Ok(run),
            Ok(_) => Err(Reply::no_data(StatusCode::CONFLICT, &entry.again())),
            Err(reason) => Err(Reply::no_data(StatusCode::GONE, &reason)),
        };
        if let Err(reply) = is_same() {
            return reply;
        }
        let key = format!("{number} {id} {asked:?}");
        let known = || lock(&self.kept).get(&key).map(Reply::json);
        if let Some(reply) = known() {
            return reply;
        }
        let Some(_turn) = entry.turn() else {
            return Reply::no_data(StatusCode::SERVICE_UNAVAILABLE, BUSY);
        };
        // Somebody may have asked for the same meanwhile.
        if let Some(reply) = known() {
            return reply;
        }
        let run = match is_same() {
            Ok(run) => run,
            Err(reply) => return reply,
        };
        let made = answer(&run, asked, &self.sources);
        if let Err(reply) = is_same() {
            return reply;
        }
        if kprism_signals::end_requested() {
            return Reply::no_data(StatusCode::SERVICE_UNAVAILABLE, "kprism view was told to end");
        }
        match made {
            Ok(Some(text)) => {
                let body = Bytes::from(text);
                lock(&self.kept).put(key, body.clone());
                Reply::json(body)
            }
            Ok(None) => Reply::no_data(StatusCode::NOT_FOUND, "this run has nothing of that name that ran"),
            Err(error) => Reply::no_data(StatusCode::UNPROCESSABLE_ENTITY, &format!("{error:#}")),
        }
    }
}

fn no_run(number: usize) -> Reply {
    Reply::message(StatusCode::NOT_FOUND, &format!("There is no run {number}."))
}
