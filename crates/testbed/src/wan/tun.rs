//! A TUN device with segmentation offload. The one module of the testbed with unsafe code: two `ioctl` calls
//! that no crate here offers.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// `struct ifreq` as TUNSETIFF reads it: a name ended by zero, flags, and the rest of its union.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// Makes the device `name` in the namespace of the calling thread. It exists as long as the file is open.
/// Reads and writes do not wait, and carry one packet each, with its offload header.
pub(super) fn open(name: &str) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let mut request =
        InterfaceRequest { name: [0; libc::IFNAMSIZ], flags: flags as libc::c_short, rest: [0; 22] };
    if name.len() >= request.name.len() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of a device has at most 15 bytes"));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the descriptor is open; the request has the size and layout of `struct ifreq`, outlives the
    // call, and the kernel keeps no pointer to it.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // The kernel leaves checksums and segmentation of TCP to the device, that is to us: nothing on the way
    // corrupts anything, so no checksum is computed, and segments are cut only where one of them is lost.
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: the descriptor is open, and this call's argument is a number.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offload)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}
