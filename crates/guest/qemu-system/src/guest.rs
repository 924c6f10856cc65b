// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads the guest: its clock, and registers and memory of the vCPU whose callback runs. Nothing here can change the
//! guest.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::OnceLock;

use kprism_image::insn::Mode;

use crate::abi;

/// A register that the observer reads. General-purpose ones are in the order of their encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reg(usize);

#[allow(missing_docs, reason = "their names say it all")]
impl Reg {
    pub const RAX: Reg = Reg(0);
    pub const RCX: Reg = Reg(1);
    pub const RDX: Reg = Reg(2);
    pub const RBX: Reg = Reg(3);
    pub const RSP: Reg = Reg(4);
    pub const RSI: Reg = Reg(6);
    pub const RDI: Reg = Reg(7);
    pub const R8: Reg = Reg(8);
    pub const R9: Reg = Reg(9);
    pub const R11: Reg = Reg(11);
    pub const RIP: Reg = Reg(16);
    pub const CS: Reg = Reg(17);
    pub const CR3: Reg = Reg(18);
    pub const CR2: Reg = Reg(19);
    pub const CR0: Reg = Reg(20);
    pub const EFER: Reg = Reg(21);
    pub const EFLAGS: Reg = Reg(22);
    pub const GS_BASE: Reg = Reg(23);

    /// GDB's name of the register.
    pub fn name(self) -> &'static str {
        NAMES[self.0]
    }

    /// The register with this number in instructions.
    pub fn general(number: usize) -> Option<Reg> {
        (number < 16).then_some(Reg(number))
    }
}

/// GDB's names of the registers.
const NAMES: [&str; 24] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15", "rip", "cs", "cr3", "cr2", "cr0", "efer", "eflags", "gs_base",
];

/// QEMU's handles of the registers; 0 for one that it does not have.
static REGISTERS: OnceLock<[usize; NAMES.len()]> = OnceLock::new();
static CLOCK: OnceLock<Option<abi::ClockGetNs>> = OnceLock::new();

thread_local! {
    static BUFFER: Cell<*mut abi::GArray> = const { Cell::new(std::ptr::null_mut()) };
}

/// Looks up the register handles. Must be called from a vCPU's init callback: QEMU's list needs a vCPU.
pub fn init() {
    REGISTERS.get_or_init(|| {
        let mut handles = [0; NAMES.len()];
        // SAFETY: called in a vCPU context; QEMU returns a GArray of descriptors with C-string names.
        unsafe {
            let array = abi::qemu_plugin_get_registers();
            let regs = (*array).data.cast::<abi::RegDescriptor>();
            for i in 0..(*array).len as usize {
                let reg = &*regs.add(i);
                let name = CStr::from_ptr(reg.name).to_string_lossy();
                if let Some(at) = NAMES.iter().position(|known| *known == name)
                    && handles[at] == 0
                {
                    handles[at] = reg.handle as usize;
                }
            }
        }
        handles
    });
    CLOCK.get_or_init(|| {
        // SAFETY: a plain symbol lookup in the running process; the type is QEMU's.
        unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"qemu_clock_get_ns".as_ptr());
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut libc::c_void, abi::ClockGetNs>(symbol))
        }
    });
}

/// Guest virtual time in ns, if this QEMU exports it. Valid only at the start of a block: inside one, deterministic
/// mode has no exact time.
pub fn clock_ns() -> Option<u64> {
    // SAFETY: the function takes a clock id and may be called from a vCPU thread at a block's start.
    CLOCK.get().copied().flatten().map(|f| unsafe { f(abi::CLOCK_VIRTUAL) } as u64)
}

/// CR0.PE: protected mode (SDM volume 3, 2.5).
pub const PROTECTED: u64 = 1;

/// Linear address at which the running code's segment begins: in real mode, 16 times its selector. Other segments are taken for
/// flat.
pub fn code_base(mode: Mode) -> u64 {
    match mode {
        Mode::Bits16 if register(Reg::CR0) & PROTECTED == 0 => (register(Reg::CS) & 0xffff) << 4,
        _ => 0,
    }
}

fn with_buffer<R>(f: impl FnOnce(*mut abi::GArray) -> R) -> R {
    BUFFER.with(|cell| {
        if cell.get().is_null() {
            // SAFETY: allocates an empty array, kept for the thread's life.
            cell.set(unsafe { abi::g_byte_array_new() });
        }
        f(cell.get())
    })
}

/// A register's value; 0 if this QEMU does not have it.
pub fn register(reg: Reg) -> u64 {
    let handle = REGISTERS.get().map_or(0, |handles| handles[reg.0]);
    if handle == 0 {
        return 0;
    }
    with_buffer(|buf| {
        // SAFETY: handle and buffer come from QEMU and glib; the value is at most 8 bytes of `len`.
        unsafe {
            abi::g_byte_array_set_size(buf, 0);
            abi::qemu_plugin_read_register(handle as *mut abi::Register, buf);
            let bytes = std::slice::from_raw_parts((*buf).data, (*buf).len as usize);
            bytes.iter().take(8).rev().fold(0, |v, &b| v << 8 | u64::from(b))
        }
    })
}

/// Fills `out` from guest virtual memory. Returns false if any of it is not mapped.
pub fn memory(va: u64, out: &mut [u8]) -> bool {
    with_buffer(|buf| {
        // SAFETY: QEMU sizes the array to the length read; we copy no more than both hold.
        unsafe {
            abi::g_byte_array_set_size(buf, 0);
            if !abi::qemu_plugin_read_memory_vaddr(va, buf, out.len()) || ((*buf).len as usize) < out.len() {
                return false;
            }
            out.copy_from_slice(std::slice::from_raw_parts((*buf).data, out.len()));
            true
        }
    })
}

/// A little-endian 64-bit word of guest memory.
pub fn word(va: u64) -> Option<u64> {
    let mut b = [0; 8];
    memory(va, &mut b).then(|| u64::from_le_bytes(b))
}

/// A little-endian 32-bit word of guest memory.
pub fn dword(va: u64) -> Option<u32> {
    let mut b = [0; 4];
    memory(va, &mut b).then(|| u32::from_le_bytes(b))
}

/// A NUL-terminated string of at most `max` bytes.
pub fn string(va: u64, max: usize) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() < max {
        let at = va + bytes.len() as u64;
        // Reads never cross a page boundary that the string may not reach.
        let n = (max - bytes.len()).min(32).min(4096 - (at % 4096) as usize);
        let mut part = [0; 32];
        if !memory(at, &mut part[..n]) {
            return None;
        }
        if let Some(end) = part[..n].iter().position(|&b| b == 0) {
            bytes.extend(&part[..end]);
            break;
        }
        bytes.extend(&part[..n]);
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
