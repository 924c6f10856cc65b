// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs in a browser: the pages of `kprism report … --html`, and beside them what is too large for one file.
//!
//! In: folders of runs, and requests over HTTP. Out: pages, and JSON that pages ask for: a function's source with its counts,
//! lines of `kprism script`, whole trees of calling contexts. Nothing is changed in a run, but that a run which was never
//! decoded is decoded, as by `kprism report`.
//!
//! | step | module |
//! |---|---|
//! | who may ask: host, token, method | [`door`] |
//! | a path and a query become a route, or are refused | [`route`] |
//! | a route becomes a reply | [`site`]; [`pages`], [`index`], [`data`] make its body |
//! | the first page opened in the user's browser | [`browser`] |
//! | answers that took a decode, remembered within bounds | [`kept`] |
//! | a page that takes long: its progress meanwhile | `waiting` |
//! | bytes of the network (hyper) | [`socket`] |
//!
//! All but `socket` are plain functions and are tested without a network. A request never names a file: it numbers a run of
//! the command line, so no path can lead out of one. Other users of the machine can reach the port; without the token, which
//! is drawn anew at each start, they get no content. A web page of another site that lets its name point to 127.0.0.1 is
//! refused by the Host header.

pub mod browser;
pub mod data;
pub mod door;
pub mod index;
pub mod kept;
pub mod pages;
pub mod reply;
pub mod route;
pub mod site;
pub mod socket;
mod waiting;

pub use door::Door;
pub use site::{Settings, Site};
pub use socket::serve;
