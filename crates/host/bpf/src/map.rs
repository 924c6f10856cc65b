// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps: memory that programs and this process share.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::Error;
use crate::host;
use crate::mapping::Mapping;
use crate::sys::{self, Cmd};

/// Types of maps, with their numbers in `bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    PercpuHash = 5,
    PercpuArray = 6,
    StackTrace = 7,
    LruHash = 9,
    LruPercpuHash = 10,
    Queue = 22,
    Stack = 23,
    RingBuffer = 27,
    TaskStorage = 29,
}

impl MapKind {
    fn is_percpu(self) -> bool {
        matches!(self, Self::PercpuHash | Self::PercpuArray | Self::LruPercpuHash)
    }
}

/// Map flag: the array can be mapped into a process.
pub const MMAPABLE: u32 = 1 << 10;

/// Map flag: memory is allocated when it is needed. Task storage has to be made with it.
const NO_PREALLOC: u32 = 1;

/// A BPF map, which the kernel frees when the last descriptor is closed.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    name: String,
    kind: MapKind,
    key_size: usize,
    value_size: usize,
    entries: u32,
    flags: u32,
}

impl Map {
    /// Creates a map. For a ring buffer, `entries` is the size in bytes, a power of two and a multiple of the page
    /// size.
    pub fn create(
        name: &str,
        kind: MapKind,
        key_size: u32,
        value_size: u32,
        entries: u32,
        flags: u32,
    ) -> Result<Self, Error> {
        let mut attr = sys::MapCreate {
            map_type: kind as u32,
            key_size,
            value_size,
            max_entries: entries,
            map_flags: flags,
            name: sys::object_name(name),
            ..Default::default()
        };
        let fd = sys::bpf_fd(Cmd::MapCreate, &mut attr).map_err(|source| {
            host::explain(format!("map {name} of {entries} × {value_size} bytes"), source)
        })?;
        let (key_size, value_size) = (key_size as usize, value_size as usize);
        Ok(Self { fd, name: name.into(), kind, key_size, value_size, entries, flags })
    }

    /// Creates an array with a single value that this process can map: global memory of the programs.
    pub fn memory(name: &str, size: u32) -> Result<Self, Error> {
        Self::create(name, MapKind::Array, 4, size, 1, MMAPABLE)
    }

    /// Creates a ring buffer of this size in bytes.
    pub fn ring(name: &str, bytes: u32) -> Result<Self, Error> {
        Self::create(name, MapKind::RingBuffer, 0, 0, bytes, 0)
    }

    /// Creates memory of this many 64-bit words for each thread, which the kernel frees when the thread ends (Linux 5.13).
    /// A thread's words are 0 at first.
    pub fn of_threads(name: &str, words: u32) -> Result<Self, Error> {
        let failed = |source| host::explain(format!("map {name} of {words} words for each thread"), source);
        // The kernel wants types of these maps, so that others can show them (`bpf_local_storage_map_check_btf`).
        let types = thread_types(words);
        let mut load =
            sys::BtfLoad { btf: types.as_ptr() as u64, size: types.len() as u32, ..Default::default() };
        let types = sys::bpf_fd(Cmd::BtfLoad, &mut load).map_err(failed)?;
        let (kind, flags) = (MapKind::TaskStorage, NO_PREALLOC);
        let mut attr = sys::MapCreate {
            map_type: kind as u32,
            key_size: 4,
            value_size: 8 * words,
            map_flags: flags,
            name: sys::object_name(name),
            btf_fd: sys::raw(types.as_fd()),
            btf_key_type: 1,
            btf_value_type: 3,
            ..Default::default()
        };
        let fd = sys::bpf_fd(Cmd::MapCreate, &mut attr).map_err(failed)?;
        Ok(Self {
            fd,
            name: name.into(),
            kind,
            key_size: 4,
            value_size: 8 * words as usize,
            entries: 0,
            flags,
        })
    }

    /// Limit of entries.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Maps the memory of an array that was created with [`MMAPABLE`].
    pub fn mapped(&self) -> Result<Mapping, Error> {
        if self.flags & MMAPABLE == 0 {
            return Err(Error::refused(format!("map {}", self.name), "it was not made to be mapped"));
        }
        let value = self.value_size.next_multiple_of(8);
        Mapping::new(self.fd.as_fd(), value * self.entries as usize, 0, true)
            .map_err(|source| self.failed("mapping", source))
    }

    /// Size of a value in the system call, in bytes. For per-CPU maps it contains the values of all possible CPUs, each
    /// padded to a multiple of 8.
    pub fn value_bytes(&self) -> usize {
        let one = self.value_size;
        if self.kind.is_percpu() { one.next_multiple_of(8) * host::possible_cpus() } else { one }
    }

    fn failed(&self, what: &str, source: io::Error) -> Error {
        Error::System { what: format!("map {}: {what}", self.name), source }
    }

    fn checked(&self, what: &str, found: usize, expected: usize) -> Result<(), Error> {
        if found == expected {
            return Ok(());
        }
        Err(Error::refused(
            format!("map {}", self.name),
            format!("a {what} has {expected} bytes, not {found}"),
        ))
    }

    fn element(&self, key: &[u8]) -> Result<sys::MapElement, Error> {
        self.checked("key", key.len(), self.key_size)?;
        let fd = sys::raw(self.fd.as_fd());
        // Queues have no key, not even an empty one.
        let key = if key.is_empty() { 0 } else { key.as_ptr() as u64 };
        Ok(sys::MapElement { fd, key, ..Default::default() })
    }

    /// Sets the value of a key.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.checked("value", value.len(), self.value_bytes())?;
        let mut attr = sys::MapElement { value: value.as_ptr() as u64, ..self.element(key)? };
        sys::bpf(Cmd::MapUpdate, &mut attr).map_err(|source| self.failed("update", source))?;
        Ok(())
    }

    /// Returns the value of a key, if present.
    pub fn lookup(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = vec![0u8; self.value_bytes()];
        let mut attr = sys::MapElement { value: value.as_mut_ptr() as u64, ..self.element(key)? };
        match sys::bpf(Cmd::MapLookup, &mut attr) {
            Ok(_) => Ok(Some(value)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("lookup", source)),
        }
    }

    /// Deletes a key. Returns true if it was present.
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let mut attr = self.element(key)?;
        match sys::bpf(Cmd::MapDelete, &mut attr) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(self.failed("delete", source)),
        }
    }

    /// Pushes a value to a queue or stack.
    pub fn push(&self, value: &[u8]) -> Result<(), Error> {
        self.update(&[], value)
    }

    /// Returns all keys. If the map changes meanwhile, the result may be incomplete or contain duplicates.
    pub fn keys(&self) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // If a key is deleted meanwhile, the kernel restarts from the beginning, so the loop needs a limit.
        while keys.len() <= self.entries as usize {
            let mut next = vec![0u8; self.key_size];
            let mut attr = match keys.last() {
                Some(last) => self.element(last)?,
                None => sys::MapElement { fd: sys::raw(self.fd.as_fd()), ..Default::default() },
            };
            attr.value = next.as_mut_ptr() as u64;
            match sys::bpf(Cmd::MapNextKey, &mut attr) {
                Ok(_) => keys.push(next),
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                Err(source) => return Err(self.failed("keys", source)),
            }
        }
        Ok(keys)
    }
}

/// BTF (Documentation/bpf/btf.rst) with three types: 1 is a key, an `int`; 3 is a value, an array of 64-bit words.
fn thread_types(words: u32) -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const ARRAY: u32 = 3 << 24;
    let strings = b"\0int\0long\0";
    // Name, kind and size; of an integer its bits, of an array the types of its elements and its index, and their number.
    let types: [&[u32]; 3] = [&[1, INT, 4, 32], &[5, INT, 8, 64], &[0, ARRAY, 0, 2, 1, words]];
    let types = types.concat();
    let (header, length) = (24_u32, 4 * types.len() as u32);
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    for word in [header, 0, length, length, strings.len() as u32].iter().chain(&types) {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(strings);
    bytes
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
