// SPDX-License-Identifier: GPL-2.0-or-later
//! A clock that is the same in each run, for the size of QEMU's software TLB.
//!
//! QEMU makes this TLB larger and smaller by its use in the last 100 ms of *this machine's* time (`tlb_mmu_resize_locked` in
//! `accel/tcg/cputlb.c`). The guest notices: while a process forks, one of its other threads may write through an entry that is out
//! of date, as on a real processor, or takes a page fault if that entry is gone. So with `-icount` too a guest on a busy machine went
//! another way than on an idle one.
//!
//! Input: the argument `clock=flushes`. Effect: QEMU's two imports that tell the date ([`DATES`]; releases differ in which of them the
//! TLB asks) lead to functions whose time is the number of questions. QEMU asks once for each table that is flushed. A guest's own
//! clocks are QEMU's virtual clock, with `-rtc clock=vm` also its date, so they stay as they are. The lab asks for it at the exact
//! pace alone.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};

/// Time from one question to the next. A hundred milliseconds are then a thousand flushes.
const STEP_US: i64 = 100;

thread_local! {
    /// Questions of this thread.
    static ASKED: Cell<i64> = const { Cell::new(0) };
}

/// The time in µs. On the main thread it stands still: how often that asks depends on the host, such as on messages to the lab.
fn now_us() -> i64 {
    // SAFETY: both have no conditions.
    if unsafe { libc::gettid() == libc::getpid() } {
        return 0;
    }
    ASKED.with(|asked| asked.replace(asked.get() + 1)) * STEP_US
}

/// In place of the C library's function of this name.
unsafe extern "C" fn gettimeofday(time: *mut libc::timeval, _zone: *mut c_void) -> c_int {
    let now = now_us();
    if !time.is_null() {
        // SAFETY: not null, and valid for writes as the C library's function demands it.
        unsafe { *time = libc::timeval { tv_sec: now / 1_000_000, tv_usec: now % 1_000_000 } };
    }
    0
}

/// In place of GLib's function of this name, in µs.
unsafe extern "C" fn g_get_real_time() -> i64 {
    now_us()
}

/// The imports that tell the date, and what they are to lead to.
const DATES: [(&CStr, *const ()); 2] =
    [(c"gettimeofday", gettimeofday as *const ()), (c"g_get_real_time", g_get_real_time as *const ())];

/// Entries of a program's dynamic section, by `d_tag` (System V ABI, "Dynamic Section").
const DT_PLTRELSZ: i64 = 2;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_RELA: i64 = 7;
const DT_RELASZ: i64 = 8;
const DT_JMPREL: i64 = 23;

#[repr(C)]
struct Dyn {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Rela {
    offset: usize,
    info: u64,
    addend: i64,
}

/// QEMU's program in memory, and its tables of imports.
#[derive(Default)]
struct Program {
    /// Added to addresses in the file.
    base: usize,
    /// Start and end of what the loader has made read-only.
    read_only: [usize; 2],
    symbols: usize,
    names: usize,
    /// Start and bytes of each table of relocations.
    tables: [[usize; 2]; 2],
}

/// Makes the clock of QEMU's software TLB this one.
///
/// # Errors
/// QEMU imports none of the functions, or its memory cannot be changed.
pub fn replace() -> Result<(), String> {
    let mut program = None;
    // SAFETY: the callback gets the pointer that is given here, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut program).cast()) };
    let program: Program = program.ok_or("QEMU's program has no dynamic section")?;
    let mut replaced = 0;
    for [start, bytes] in program.tables {
        for i in 0..bytes / size_of::<Rela>() {
            // SAFETY: the program's own table, which it does not change.
            let entry = unsafe { &*(start as *const Rela).add(i) };
            // Whatever the kind of relocation, one with a function's symbol leaves the function's address at its place.
            // SAFETY: the entry's symbol is one of the program's, and its name ends with 0.
            let name = unsafe {
                let symbol = &*(program.symbols as *const libc::Elf64_Sym).add((entry.info >> 32) as usize);
                CStr::from_ptr((program.names + symbol.st_name as usize) as *const c_char)
            };
            if let Some((_, function)) = DATES.iter().find(|(date, _)| *date == name) {
                program.lead(program.base + entry.offset, *function)?;
                replaced += 1;
            }
        }
    }
    if replaced == 0 {
        return Err(
            "this QEMU imports no clock that is known, so that its guests depend on this machine's load"
                .into(),
        );
    }
    Ok(())
}

impl Program {
    /// Has an import at `slot` lead to `function`.
    fn lead(&self, slot: usize, function: *const ()) -> Result<(), String> {
        let protect = |protection| {
            let page = (slot & !0xfff) as *mut c_void;
            // SAFETY: the page holds addresses of imports, no code.
            match unsafe { libc::mprotect(page, 0x1000, protection) } {
                0 => Ok(()),
                _ => Err(format!("QEMU's imports: {}", std::io::Error::last_os_error())),
            }
        };
        let is_read_only = (self.read_only[0]..self.read_only[1]).contains(&slot);
        if is_read_only {
            protect(libc::PROT_READ | libc::PROT_WRITE)?;
        }
        // SAFETY: the loader keeps an address here, aligned; the page is writable, and QEMU starts its vCPUs only after its plugins.
        unsafe { (slot as *mut usize).write_volatile(function.addr()) };
        if is_read_only { protect(libc::PROT_READ) } else { Ok(()) }
    }
}

/// Reads the first object of the process, its program, into the `Option<Program>` at `found`, and ends the walk.
unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: libc::size_t, found: *mut c_void) -> c_int {
    // SAFETY: the loader passes its own description, `replace` the place.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Option<Program>>()) };
    let mut program = Program { base: info.dlpi_addr as usize, ..Program::default() };
    let mut dynamic = None;
    // SAFETY: the loader's table of the program's segments.
    for segment in unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) } {
        let start = program.base + segment.p_vaddr as usize;
        match segment.p_type {
            libc::PT_DYNAMIC => dynamic = Some(start as *const Dyn),
            libc::PT_GNU_RELRO => program.read_only = [start, start + segment.p_memsz as usize],
            _ => {}
        }
    }
    let Some(mut entry) = dynamic else { return 1 };
    loop {
        // SAFETY: the section ends with an entry whose tag is 0.
        let Dyn { tag, value } = unsafe { entry.read() };
        // glibc adds the base to addresses here, musl does not.
        let address = if value < program.base { program.base + value } else { value };
        match tag {
            0 => break,
            DT_STRTAB => program.names = address,
            DT_SYMTAB => program.symbols = address,
            DT_JMPREL => program.tables[0][0] = address,
            DT_PLTRELSZ => program.tables[0][1] = value,
            DT_RELA => program.tables[1][0] = address,
            DT_RELASZ => program.tables[1][1] = value,
            _ => {}
        }
        // SAFETY: not the last one.
        entry = unsafe { entry.add(1) };
    }
    *found = Some(program);
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program of tests is a program like QEMU, if it imports one of the functions.
    #[test]
    fn a_programs_clock_is_replaced() {
        // An import of this program, by whatever kind of relocation.
        let import = libc::gettimeofday as unsafe extern "C" fn(_, _) -> _;
        let import = std::hint::black_box(import);
        let read = || {
            let mut time = libc::timeval { tv_sec: -1, tv_usec: -1 };
            // SAFETY: a valid place.
            assert_eq!(unsafe { libc::gettimeofday(&raw mut time, std::ptr::null_mut()) }, 0);
            (time.tv_sec, time.tv_usec)
        };
        let mut time = libc::timeval { tv_sec: -1, tv_usec: -1 };
        // SAFETY: a valid place.
        unsafe { import(&raw mut time, std::ptr::null_mut()) };
        assert!(time.tv_sec > 1_000_000_000, "the C library's");
        replace().unwrap();
        // A thread that asked nothing before.
        let thread = std::thread::spawn(move || {
            assert_eq!(read(), (0, 0));
            for _ in 1..25_000 {
                read();
            }
            assert_eq!(read(), (2, 500_000));
        });
        thread.join().unwrap();
    }
}
