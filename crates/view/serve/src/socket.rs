// SPDX-License-Identifier: MIT OR Apache-2.0
//! Serves a site over HTTP/1.1 on a socket.
//!
//! In: a listening socket, a door, a site. Out: replies, until an end is requested or nobody asked for a while. hyper reads the
//! requests: a head that is too large or comes too slowly ends its connection. Replies are made on threads of their own, few
//! at a time; bodies of requests are not read.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_LENGTH, HOST, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::door::Door;
use crate::reply::Reply;
use crate::site::Site;

/// Bytes of a request's head at most.
const HEAD: usize = 64 << 10;
/// Time for a head to come, and for a connection to be kept without a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time of a connection in all.
const LONGEST: Duration = Duration::from_secs(3600);
/// Connections at a time.
const CONNECTIONS: usize = 64;
/// Threads that make replies. Most of them wait for another reply of their run.
const THREADS: usize = 24;
/// Time between two looks at whether an end was requested.
const TICK: Duration = Duration::from_millis(100);

/// Shared by the connections.
struct State {
    site: Site,
    door: Door,
    begun: Instant,
    /// Milliseconds from `begun` to the end of the last request.
    last: AtomicU64,
    /// Requests being answered.
    active: AtomicUsize,
}

impl State {
    fn touch(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::SeqCst);
    }

    fn is_idle(&self, limit: Duration) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::SeqCst));
        self.active.load(Ordering::SeqCst) == 0 && self.begun.elapsed().saturating_sub(last) >= limit
    }
}

/// Serves until an end is requested (`kprism-signals`), or nobody asked for the time `idle`.
///
/// # Errors
/// The socket cannot be used.
pub fn serve(listener: TcpListener, door: Door, site: Site, idle: Option<Duration>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(THREADS)
        .build()?;
    listener.set_nonblocking(true)?;
    let (last, active) = (AtomicU64::new(0), AtomicUsize::new(0));
    let state = Arc::new(State { site, door, begun: Instant::now(), last, active });
    let served = runtime.block_on(accept(listener, &state, idle));
    // A reply that is being made is not waited for.
    runtime.shutdown_background();
    served
}

async fn accept(listener: TcpListener, state: &Arc<State>, idle: Option<Duration>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        if kprism_signals::end_requested() || idle.is_some_and(|limit| state.is_idle(limit)) {
            return Ok(());
        }
        let Ok(accepted) = tokio::time::timeout(TICK, listener.accept()).await else { continue };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // The other side went away, or no descriptor is left: others may end meanwhile.
            Err(_) => {
                tokio::time::sleep(TICK).await;
                continue;
            }
        };
        // Whoever opens more than that waits for the own connections to end.
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let state = Arc::clone(state);
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE)
                .max_buf_size(HEAD)
                .serve_connection(TokioIo::new(stream), service_fn(|request| answer(&state, request)));
            // A broken request ends its connection, which is all that can be done about it.
            let _ = tokio::time::timeout(LONGEST, connection).await;
            drop(place);
        });
    }
}

async fn answer(state: &Arc<State>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    state.active.fetch_add(1, Ordering::SeqCst);
    let own = Arc::clone(state);
    let (head, _) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let made = tokio::task::spawn_blocking(move || {
        let mut hosts: Vec<&[u8]> = head.headers.get_all(HOST).iter().map(HeaderValue::as_bytes).collect();
        hosts.extend(head.uri.authority().map(|authority| authority.as_str().as_bytes()));
        let accepts = head.headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let shows = accepts.is_some_and(|accept| accept.contains("text/html"));
        own.site.reply(&own.door, head.method.as_str(), &hosts, head.uri.path(), head.uri.query(), shows)
    });
    let reply = made.await.unwrap_or_else(|_| {
        Reply::message(
            StatusCode::INTERNAL_SERVER_ERROR,
            "kprism failed to make this reply; that is a fault in kprism",
        )
    });
    state.touch();
    state.active.fetch_sub(1, Ordering::SeqCst);
    Ok(response(reply, is_head))
}

fn response(reply: Reply, is_head: bool) -> Response<Full<Bytes>> {
    let length = reply.body.len();
    let headers = reply.headers();
    let mut response = Response::new(Full::new(if is_head { Bytes::new() } else { reply.body }));
    *response.status_mut() = reply.status;
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    response
}
