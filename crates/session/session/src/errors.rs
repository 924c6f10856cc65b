// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors as a program tells them: the text with all causes, and the one error that is none.

/// The error with its causes. A library's error that names its cause already is not told twice.
pub fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Whether the error is that nobody reads our output any more (`kprism report | head`).
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        let json = cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        io.or(json) == Some(std::io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::text_of;
    use anyhow::Context as _;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("run: {source}")]
        struct Named {
            source: std::io::Error,
        }
        let io = std::io::Error::other("no space");
        let error = Err::<(), _>(Named { source: io }).context("report").unwrap_err();
        assert_eq!(text_of(&error), "report: run: no space");
    }
}
