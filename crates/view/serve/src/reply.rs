// SPDX-License-Identifier: MIT OR Apache-2.0
//! A reply apart from the network: status, kind of content, body. Its headers are the same for all replies of a kind.

use bytes::Bytes;
use http::StatusCode;
use kprism_report::html::POLICY;
use kprism_report::xml;
use serde_json::{Value, json};

use crate::door::Refusal;

/// Kinds of content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A page with a program in it, which may ask for data.
    Page,
    /// A page without a program.
    Plain,
    /// Data.
    Json,
    /// None.
    Nothing,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// HTTP's status.
    pub status: StatusCode,
    /// Kind of the body.
    pub content: Content,
    /// The body.
    pub body: Bytes,
    /// Address to go to instead, relative to the one asked for.
    pub location: Option<String>,
}

impl Reply {
    fn new(status: StatusCode, content: Content, body: impl Into<Bytes>) -> Self {
        Reply { status, content, body: body.into(), location: None }
    }

    /// A page with its program.
    pub fn page(html: String) -> Self {
        Self::new(StatusCode::OK, Content::Page, html)
    }

    /// A page without one.
    pub fn plain(html: String) -> Self {
        Self::new(StatusCode::OK, Content::Plain, html)
    }

    /// Data that are JSON already.
    pub fn json(text: impl Into<Bytes>) -> Self {
        Self::new(StatusCode::OK, Content::Json, text)
    }

    /// Another address.
    pub fn see(location: String) -> Self {
        Reply { location: Some(location), ..Self::new(StatusCode::SEE_OTHER, Content::Nothing, "") }
    }

    /// Why there is no page, for people.
    pub fn message(status: StatusCode, text: &str) -> Self {
        let page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kprism</title>\n\
             <style>:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }} \
             body {{ max-width: 70ch; margin: 3em auto; padding: 0 1em; overflow-wrap: anywhere; }}</style></head>\n\
             <body><h1>kprism</h1><p id=\"message\">{}</p></body></html>\n",
            xml::escaped(text)
        );
        Self::new(status, Content::Plain, page)
    }

    /// Why there are no data, for a page that asked.
    pub fn no_data(status: StatusCode, text: &str) -> Self {
        let value: Value = json!({ "error": text });
        Self::new(status, Content::Json, value.to_string())
    }

    /// A refusal, without content.
    pub fn refused(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Host | Refusal::Token => StatusCode::FORBIDDEN,
            Refusal::Method => StatusCode::METHOD_NOT_ALLOWED,
        };
        Self::new(status, Content::Nothing, "")
    }

    /// Its headers, but for the length.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let (kind, policy) = match self.content {
            Content::Page => ("text/html; charset=utf-8", format!("{POLICY}; connect-src 'self'; {CLOSED}")),
            Content::Plain => (
                "text/html; charset=utf-8",
                format!(
                    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; {CLOSED}"
                ),
            ),
            Content::Json => ("application/json", format!("default-src 'none'; {CLOSED}")),
            Content::Nothing => ("text/plain", format!("default-src 'none'; {CLOSED}")),
        };
        let mut headers = vec![
            ("content-type", kind.to_owned()),
            ("content-security-policy", policy),
            ("cache-control", "no-store".to_owned()),
            ("x-content-type-options", "nosniff".to_owned()),
            ("referrer-policy", "no-referrer".to_owned()),
            ("cross-origin-resource-policy", "same-origin".to_owned()),
            ("cross-origin-opener-policy", "same-origin".to_owned()),
        ];
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.push(("allow", "GET, HEAD".to_owned()));
        }
        headers.extend(self.location.clone().map(|to| ("location", to)));
        headers
    }
}

/// Holds for all content: no other page may frame it, and nothing changes what its links mean.
const CLOSED: &str = "base-uri 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_hold_no_markup() {
        let reply = Reply::message(StatusCode::GONE, "a<script>b</script>&\u{1b}[2J");
        let text = String::from_utf8(reply.body.to_vec()).unwrap();
        assert!(!text.contains("<script") && !text.contains('\u{1b}'), "{text}");
        assert!(Reply::refused(Refusal::Token).body.is_empty());
    }
}
