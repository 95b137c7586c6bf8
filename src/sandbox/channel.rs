//! Messages with file descriptors between the processes of a sandbox.
//!
//! A message is one packet of JSON, of at most [`MAX_MESSAGE`] bytes. Larger values are sent as a
//! memfd, whose descriptor the message carries.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

/// The longest message, in bytes. A longer one arrives truncated, and fails as invalid JSON.
const MAX_MESSAGE: usize = 32 << 10;
/// The most descriptors of one message; [`Channel::send`] refuses more.
const MAX_DESCRIPTORS: usize = 4;
/// The largest memfd that is read, in bytes; a larger one is an error. Far above the kernel's limit
/// for the arguments and environment of a command.
const MAX_FILE: u64 = 64 << 20;

/// One end of a connection between two processes of a sandbox.
#[derive(Debug)]
pub struct Channel<Fd: AsFd = OwnedFd>(Fd);

impl Channel {
    /// Makes both ends of a new connection, with `FD_CLOEXEC` set.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (here, there) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(here), Self(there)))
    }

    /// Takes the end that this process has as its standard output, and replaces that output by
    /// /dev/null.
    pub fn take_stdout() -> io::Result<Self> {
        let channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(File::open("/dev/null")?)?;
        Ok(Self(channel))
    }

    /// The descriptor, to start a process with it.
    pub fn into_inner(self) -> OwnedFd {
        self.0
    }
}

impl Channel<BorrowedFd<'static>> {
    /// The end that this process has as its standard input.
    pub fn from_stdin() -> Self {
        Self(rustix::stdio::stdin())
    }
}

impl<Fd: AsFd> Channel<Fd> {
    /// Returns a duplicate of the socket, to wait for readiness. The socket and the duplicate
    /// become non-blocking. Must be called within a Tokio runtime.
    pub fn watch(&self) -> io::Result<UnixStream> {
        let same = std::os::unix::net::UnixStream::from(self.0.as_fd().try_clone_to_owned()?);
        same.set_nonblocking(true)?;
        UnixStream::from_std(same)
    }

    /// Sends a message with descriptors; fails if there are more than `MAX_DESCRIPTORS`.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("a message carries at most 4 descriptors"));
        }
        let slices = [IoSlice::new(&bytes)];
        retry_on_intr(|| sendmsg(&self.0, &slices, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for the next message; `None` when the other end is closed.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC)
    }

    /// Receives a message without waiting. Fails with `WouldBlock` if there is none; returns `None`
    /// when the other end is closed.
    pub fn try_receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        self.receive_with(RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)
    }

    fn receive_with<T: DeserializeOwned>(
        &self,
        flags: RecvFlags,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = [0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            recvmsg(&self.0, &mut slices, &mut control, flags)
        })?;
        let fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds: Vec<OwnedFd> = fds.flatten().collect();
        match bytes.get(..received.bytes) {
            None | Some([]) => Ok(None),
            Some(message) => Ok(Some((serde_json::from_slice(message)?, fds))),
        }
    }
}

/// Writes a value as JSON into a memfd.
pub(super) fn to_memory(value: &impl Serialize) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("spec", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(value)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads a value that [`to_memory`] wrote. Fails if its JSON is longer than [`MAX_FILE`].
pub(super) fn from_memory<T: DeserializeOwned>(file: OwnedFd) -> io::Result<T> {
    let mut bytes = Vec::new();
    let file = File::from(file);
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        let problem = format!("the memfd is longer than {MAX_FILE} bytes");
        return Err(io::Error::other(problem));
    }
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_whole_and_with_its_descriptors() {
        let (here, there) = Channel::pair().unwrap();
        let file = to_memory(&"x".repeat(1 << 20)).unwrap();
        here.send(&("spec", 1), &[file.as_fd()]).unwrap();
        here.send(&("next", 2), &[]).unwrap();
        let (message, mut fds): ((String, u8), _) = there.receive().unwrap().unwrap();
        assert_eq!(message, ("spec".to_owned(), 1));
        let text: String = from_memory(fds.remove(0)).unwrap();
        assert_eq!(text.len(), 1 << 20);
        let ((name, _), fds): ((String, u8), _) = there.receive().unwrap().unwrap();
        assert_eq!((name.as_str(), fds.len()), ("next", 0));
    }

    #[test]
    fn a_memfd_over_the_limit_is_refused() {
        let file = File::from(memfd_create("spec", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(MAX_FILE + 1).unwrap();
        let error = from_memory::<String>(file.into()).unwrap_err();
        assert_eq!(error.to_string(), "the memfd is longer than 67108864 bytes");
    }

    #[test]
    fn receive_returns_none_after_the_other_end_is_closed() {
        let (here, there) = Channel::pair().unwrap();
        drop(here);
        assert!(there.receive::<String>().unwrap().is_none());
    }
}
