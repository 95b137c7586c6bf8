//! Brings up the loopback interface of a new network namespace.

use std::io;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};

const RTM_NEWLINK: u16 = 16;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
/// The index of `lo` in every network namespace.
const LOOPBACK_INDEX: i32 = 1;
const IFF_UP: u32 = 1;

/// Brings the interface up. The kernel then assigns 127.0.0.1 and ::1.
pub fn bring_up() -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE
    )?;
    send(&socket, &request(), SendFlags::empty())?;
    let mut answer = [0; 256];
    let (_, length) = recv(&socket, &mut answer, RecvFlags::empty())?;
    acknowledged(answer.get(..length).unwrap_or_default())
}

/// The request: `nlmsghdr` and `ifinfomsg` (rtnetlink(7)), in native byte order.
fn request() -> Vec<u8> {
    let mut message = Vec::with_capacity(32);
    message.extend(32_u32.to_ne_bytes()); // length
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    message.extend(1_u32.to_ne_bytes()); // sequence
    message.extend(0_u32.to_ne_bytes()); // to the kernel
    message.extend([0; 4]); // family, padding, type
    message.extend(LOOPBACK_INDEX.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes()); // the flags that are changed
    message
}

/// Checks the kernel's acknowledgement, an `nlmsgerr` whose error is 0 on success.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let unreadable = || io::Error::other("the kernel's answer to RTM_NEWLINK for lo is malformed");
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok());
    if kind.map(u16::from_ne_bytes) != Some(NLMSG_ERROR) {
        return Err(unreadable());
    }
    match error.map(i32::from_ne_bytes).ok_or_else(unreadable)? {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
    }
}
