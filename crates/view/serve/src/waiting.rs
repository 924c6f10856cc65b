// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that take long to make: made on a thread of their own, with a page about the progress meanwhile.
//!
//! In: a function that makes a reply and tells its progress. Out: its reply, if it is made within [`PATIENCE`], else a small
//! page that asks for the progress and loads itself again at the end. A reply is kept until somebody takes it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use kprism_profile::units::printable;
use kprism_report::xml::escaped;
use kprism_session::Progress;
use kprism_session::progress::Update;
use serde_json::json;

use crate::reply::Reply;
use crate::route::View;

/// Longest time that a browser waits without being told anything.
const PATIENCE: Duration = Duration::from_millis(700);
/// Longest time that a page is kept for a browser that waits for it.
const FRESH: Duration = Duration::from_secs(10);

/// State of a page that is being made.
#[derive(Debug, Default)]
struct Made {
    /// The step, for people.
    text: String,
    /// Part of the step that is done.
    part: Option<f64>,
    reply: Option<Reply>,
    /// Time of the end.
    ended: Option<Instant>,
}

impl Made {
    fn is_stale(&self) -> bool {
        self.ended.is_some_and(|ended| ended.elapsed() > FRESH)
    }
}

#[derive(Debug, Default)]
struct Job {
    made: Mutex<Made>,
    ended: Condvar,
}

/// The pages that are being made, by run and view: one of each at most.
#[derive(Debug, Default)]
pub(crate) struct Jobs(Mutex<HashMap<(usize, View), Arc<Job>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the job even if its thread panics.
struct Ends(Arc<Job>);

impl Drop for Ends {
    fn drop(&mut self) {
        let mut made = lock(&self.0.made);
        made.reply.get_or_insert_with(|| {
            let text = "kprism failed to make this page; that is a fault in kprism";
            Reply::message(StatusCode::INTERNAL_SERVER_ERROR, text)
        });
        made.ended = Some(Instant::now());
        self.0.ended.notify_all();
    }
}

fn told_to(job: &Arc<Job>) -> Progress {
    let job = Arc::clone(job);
    Progress::new(false, move |update| {
        let (text, part) = match update {
            Update::Step(text) | Update::LongStep(text) => (text, None),
            Update::Amount { text, done, total } if total > 0 => (text, Some(done as f64 / total as f64)),
            _ => return,
        };
        let mut made = lock(&job.made);
        made.text = printable(text);
        made.part = part.map(|part| part.min(1.0));
    })
}

impl Jobs {
    /// The page of a view, or one about its progress. `make` runs on a thread of its own.
    pub(crate) fn page(
        &self,
        key: (usize, View),
        name: &str,
        make: impl FnOnce(&Progress) -> Reply + Send + 'static,
    ) -> Reply {
        let job = {
            let mut jobs = lock(&self.0);
            match jobs.get(&key) {
                Some(job) if !lock(&job.made).is_stale() => Arc::clone(job),
                _ => {
                    let job = Arc::new(Job::default());
                    jobs.insert(key, Arc::clone(&job));
                    let ends = Ends(Arc::clone(&job));
                    std::thread::spawn(move || {
                        let reply = make(&told_to(&ends.0));
                        lock(&ends.0.made).reply = Some(reply);
                        drop(ends);
                    });
                    job
                }
            }
        };
        let begun = Instant::now();
        let mut made = lock(&job.made);
        while made.reply.is_none() {
            let Some(left) = PATIENCE.checked_sub(begun.elapsed()) else {
                return waiting(name, &made);
            };
            made = job.ended.wait_timeout(made, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let reply = made.reply.clone();
        drop(made);
        // Whoever asks next has the page made anew, of the run as it is then.
        let mut jobs = lock(&self.0);
        if jobs.get(&key).is_some_and(|own| Arc::ptr_eq(own, &job)) {
            jobs.remove(&key);
        }
        reply.unwrap_or_else(|| Reply::message(StatusCode::INTERNAL_SERVER_ERROR, "no page was made"))
    }

    /// The progress of a page as JSON: whether it is done, or nobody makes it; the step; the part of it that is done.
    pub(crate) fn progress(&self, key: (usize, View)) -> Reply {
        let job = lock(&self.0).get(&key).map(Arc::clone);
        let value = match &job {
            None => json!({"done": true}),
            Some(job) => {
                let made = lock(&job.made);
                json!({"done": made.reply.is_some(), "text": said(&made), "part": made.part})
            }
        };
        Reply::json(value.to_string())
    }
}

fn said(made: &Made) -> String {
    let text = if made.text.is_empty() { "Reading the run" } else { &made.text };
    made.part.map_or_else(|| format!("{text} …"), |part| format!("{text}: {:.0} %", (part * 100.0).floor()))
}

/// Asks for the progress, and loads the page when it is made.
const PROGRAM: &str = "\
const bar = document.querySelector('progress'), told = document.getElementById('told');
const ask = async () => {
  try {
    const now = await (await fetch(location.pathname.split('/').pop() + '/progress')).json();
    if (now.done) return location.reload();
    if (told.textContent !== now.text) told.textContent = now.text;
    if (now.part === null) bar.removeAttribute('value'); else bar.value = now.part;
    setTimeout(ask, 300);
  } catch {
    told.textContent = 'kprism view does not answer: it has ended. Start it again and open its new address.';
    bar.hidden = true;
  }
};
setTimeout(ask, 300);";

fn waiting(name: &str, made: &Made) -> Reply {
    let value = made.part.map_or_else(String::new, |part| format!(" value=\"{part:.3}\""));
    let html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name} · kprism</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <style>:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }} \
         body {{ max-width: 70ch; margin: 3em auto; padding: 0 1em; overflow-wrap: anywhere; }} \
         progress {{ width: 100%; }}</style></head>\n\
         <body><main><h1>{name}</h1><p>This page is being made. It appears by itself.</p>\
         <p id=\"told\" role=\"status\">{}</p><progress id=\"waiting\" aria-label=\"Progress\"{value}></progress>\
         <noscript><p><a href=\"\">Look again</a></p></noscript></main>\n<script>{PROGRAM}</script></body></html>\n",
        escaped(&said(made)),
        name = escaped(name),
    );
    Reply { status: StatusCode::ACCEPTED, ..Reply::page(html) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const KEY: (usize, View) = (0, View::Report);

    fn body(reply: &Reply) -> String {
        String::from_utf8(reply.body.to_vec()).unwrap()
    }

    #[test]
    fn quick_pages_are_given_at_once() {
        let jobs = Jobs::default();
        for n in 0..3 {
            let reply = jobs.page(KEY, "run", move |_| Reply::page(format!("page {n}")));
            assert_eq!((reply.status, body(&reply)), (StatusCode::OK, format!("page {n}")));
        }
        assert!(body(&jobs.progress(KEY)).contains("\"done\":true"));
    }

    #[test]
    fn slow_pages_tell_their_progress_and_are_made_once() {
        let jobs = Jobs::default();
        let (go, wait) = channel::<()>();
        let (told, hears) = channel::<()>();
        let reply = jobs.page(KEY, "a<b>\u{1b}", move |progress| {
            progress.amount("decoding <i>\u{1b}[2J", 43, 100);
            told.send(()).unwrap();
            wait.recv().unwrap();
            Reply::page("the page".into())
        });
        hears.recv().unwrap();
        let text = body(&reply);
        assert_eq!(reply.status, StatusCode::ACCEPTED);
        assert!(!text.contains("<i>") && !text.contains("<b>") && !text.contains('\u{1b}'), "{text}");
        let progress = body(&jobs.progress(KEY));
        assert!(progress.contains("43 %") && progress.contains("\"done\":false"), "{progress}");
        // Another who asks meanwhile makes no second one.
        let second = jobs.page(KEY, "run", |_| unreachable!("it is being made"));
        assert_eq!(second.status, StatusCode::ACCEPTED);
        go.send(()).unwrap();
        let done = || body(&jobs.progress(KEY)).contains("\"done\":true");
        while !done() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(body(&jobs.page(KEY, "run", |_| Reply::page("another".into()))), "the page");
    }

    #[test]
    fn a_panic_ends_the_wait() {
        let jobs = Jobs::default();
        let reply = jobs.page(KEY, "run", |_| panic!("meant for this test"));
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
