// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's network: `lo`, and QEMU's user mode network if the guest has a device for it.
//!
//! That network has fixed addresses (QEMU, docs/system/devices/net.rst), so nobody need be asked for one.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

/// Addresses of the guest, of the gateway (which is this network's name for the host), and of the name server.
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const MASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const NAMES: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);

/// Sets the host name and brings `lo` up, for commands that use the loopback. Failures are ignored.
pub fn start() {
    fs::write("/proc/sys/kernel/hostname", "kprism").ok();
    socket().and_then(|socket| bring_up(&socket, "lo")).ok();
}

/// Gives the guest's network device its address, and the guest a name server. Without a device there is nothing to do.
///
/// # Errors
/// The kernel refuses a setting.
pub fn connect() -> io::Result<()> {
    let Some(device) = device() else { return Ok(()) };
    let failed = |error: io::Error| io::Error::other(format!("setting up {device}: {error}"));
    let socket = socket().map_err(failed)?;
    for (request, address) in [(libc::SIOCSIFADDR, GUEST), (libc::SIOCSIFNETMASK, MASK)] {
        let mut settings = named(&device);
        settings.ifr_ifru.ifru_addr = socket_address(address);
        control(&socket, request, &mut settings).map_err(failed)?;
    }
    bring_up(&socket, &device).map_err(failed)?;
    // SAFETY: an all-zero rtentry is valid.
    let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
    route.rt_gateway = socket_address(GATEWAY);
    route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
    route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
    control(&socket, libc::SIOCADDRT, &mut route).map_err(failed)?;
    let names = Path::new("/etc/resolv.conf");
    if !names.exists() {
        // Not all root file systems can be written to.
        fs::write(names, format!("nameserver {NAMES}\n")).ok();
    }
    Ok(())
}

/// The first network device that is no loopback.
fn device() -> Option<String> {
    let mut names: Vec<String> = fs::read_dir("/sys/class/net")
        .ok()?
        .flatten()
        // Others are tunnels and the like, which modules bring.
        .filter(|entry| entry.path().join("device").exists())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names.into_iter().next()
}

fn bring_up(socket: &OwnedFd, device: &str) -> io::Result<()> {
    let mut settings = named(device);
    control(socket, libc::SIOCGIFFLAGS, &mut settings)?;
    // SAFETY: the kernel has just filled in the flags.
    unsafe { settings.ifr_ifru.ifru_flags |= libc::IFF_UP as libc::c_short };
    control(socket, libc::SIOCSIFFLAGS, &mut settings)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain socket, which is owned from here on.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(socket)) }
    }
}

/// Settings of the device of this name, all zero. A name that is too long is cut off, and found by nobody.
fn named(device: &str) -> libc::ifreq {
    // SAFETY: an all-zero ifreq is valid.
    let mut settings: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in settings.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(device.bytes()) {
        *to = byte as libc::c_char;
    }
    settings
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    for (to, byte) in data[2..].iter_mut().zip(address.octets()) {
        *to = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

/// ioctl(2) with a structure that the call reads and fills in.
fn control<T>(socket: &OwnedFd, request: libc::c_ulong, structure: &mut T) -> io::Result<()> {
    // SAFETY: each caller passes the structure of its request (netdevice(7), include/uapi/linux/route.h), which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request as _, structure) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
