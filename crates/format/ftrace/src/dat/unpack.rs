// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decompression with bounded memory: at most the announced size, and at most a multiple of the compressed size.

use std::io::Read;

use crate::fault::FtraceError;

/// Limit of the compression ratio. Real pages of a ring buffer stay below it.
const TIGHTEST: usize = 4096;

/// Decompresses data whose announced size is `claimed` bytes.
pub(super) fn unpack(
    method: &str,
    packed: &[u8],
    claimed: usize,
    place: &str,
) -> Result<Vec<u8>, FtraceError> {
    let most = claimed.min(packed.len().saturating_mul(TIGHTEST));
    let mut out = Vec::new();
    let limited = |reader: &mut dyn Read, out: &mut Vec<u8>| reader.take(most as u64 + 1).read_to_end(out);
    let read = match method {
        "zstd" => match ruzstd::decoding::StreamingDecoder::new(packed) {
            Ok(mut reader) => limited(&mut reader, &mut out).map(|_| ()).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        },
        "zlib" => limited(&mut flate2::read::ZlibDecoder::new(packed), &mut out)
            .map(|_| ())
            .map_err(|e| e.to_string()),
        _ => {
            let what = format!(
                "{place}: compression {method:?} is not known: convert the file with `trace-cmd convert --compression none`"
            );
            return Err(FtraceError::Unsupported { what });
        }
    };
    match read {
        Ok(()) if out.len() == claimed => Ok(out),
        Ok(()) => Err(FtraceError::format(place, format!("{method} data that unpacks to {claimed} bytes"))),
        Err(error) => Err(FtraceError::format(place, format!("{method} data ({error})"))),
    }
}
