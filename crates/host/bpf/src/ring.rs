// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reader of the kernel's ring buffer (`kernel/bpf/ringbuf.c`): no system call for each record, and none at all while
//! there are records.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use crate::error::Error;
use crate::map::Map;
use crate::mapping::Mapping;

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// A reader of a ring buffer.
#[derive(Debug)]
pub struct Ring<'a> {
    map: &'a Map,
    consumer: Mapping,
    /// The producer's page, followed by the data, which is mapped twice so that no record is split.
    producer: Mapping,
    page: usize,
    mask: u64,
    scratch: Vec<u8>,
}

impl<'a> Ring<'a> {
    /// Maps the ring buffer.
    pub fn new(map: &'a Map) -> Result<Self, Error> {
        // SAFETY: sysconf takes and gives a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let size = map.entries() as usize;
        let failed = |source| Error::System { what: "mapping a ring buffer".into(), source };
        let consumer = Mapping::new(map.as_fd(), page, 0, true).map_err(failed)?;
        let producer = Mapping::new(map.as_fd(), page + 2 * size, page, false).map_err(failed)?;
        Ok(Self { map, consumer, producer, page, mask: size as u64 - 1, scratch: Vec::new() })
    }

    /// Passes all complete records to `take`. Returns their number.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        let mut position = self.consumer.read(0);
        let mut records = 0;
        while position < self.producer.read_acquire(0) {
            let at = self.page + (position & self.mask) as usize;
            // Length and flags; then the page offset, which only the kernel uses.
            let header = self.producer.read_acquire(at) as u32;
            if header & BUSY != 0 {
                break;
            }
            let len = (header & !(BUSY | DISCARDED)) as usize;
            if header & DISCARDED == 0 {
                self.scratch.resize(len, 0);
                self.producer.copy(at + 8, &mut self.scratch);
                take(&self.scratch);
                records += 1;
            }
            position += (len + 8).next_multiple_of(8) as u64;
            self.consumer.write(0, position);
        }
        records
    }

    /// Returns true if the ring is not empty: a record is being written, or was written since the last read.
    pub fn is_busy(&self) -> bool {
        self.consumer.read(0) < self.producer.read_acquire(0)
    }

    /// Waits until there is something to read, for at most `limit`.
    pub fn wait(&self, limit: Duration) {
        let mut poll = libc::pollfd { fd: self.map.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: one pollfd, which lives over the call. An error (a signal) ends the wait, which is all we want.
        unsafe { libc::poll(&raw mut poll, 1, limit) };
    }
}
