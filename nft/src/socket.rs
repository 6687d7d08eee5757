//! Netlink sockets: sends requests to the kernel and receives its messages.
//!
//! The `mnl` crate opens and binds the socket and sends short messages. This module adds what the crate lacks: sending a batch of any
//! length in one `sendmsg` (the crate's `send_all` sends each page by itself, but the kernel takes a batch only as a whole), receiving
//! without waiting, and socket options.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::wire::narrow;

/// The part of the kernel at the other end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// nf_tables and conntrack.
    Netfilter,
    /// Addresses, links and routes.
    Route,
    /// Generic netlink: parts of the kernel that are found by a name, such as IPVS.
    Generic,
    /// The sockets of the network namespace.
    SockDiag,
}

/// `NETLINK_CAP_ACK`: acknowledgements quote only the header of the request.
const CAP_ACK: c_int = 10;
/// `NETLINK_EXT_ACK`: errors may have a description, and the offset of the attribute that they are about.
const EXT_ACK: c_int = 11;
/// The size of the buffer for one datagram, in bytes. The kernel's datagrams of a dump have at most 32 KiB.
const READ_SIZE: usize = 64 * 1024;
/// How much longer than a datagram the send buffer has to be, in bytes (`netlink_sendmsg` in `net/netlink/af_netlink.c`). The kernel's own
/// data about a datagram does not count.
pub(crate) const SEND_OVERHEAD: usize = 32;
/// The longest datagram that any process may send, in bytes: the kernel limits a send buffer to `INT_MAX` (`sock_set_sndbuf` in
/// `net/core/sock.c`), rounded down to an even number.
pub(crate) const LONGEST: usize = (i32::MAX as usize - 1) - SEND_OVERHEAD;

/// A netlink socket, closed on exec.
pub struct Socket {
    inner: mnl::Socket,
    /// The buffer for received datagrams, of 64-bit words so that the messages in it are aligned.
    buffer: Vec<u64>,
    /// The length of a datagram that the kernel's send buffer surely has room for, in bytes; 0 until the first batch.
    send_buffer: usize,
    /// See [`Socket::limit`].
    limit: usize,
}

// SAFETY: the only field that is not `Send` is the pointer in `mnl::Socket`, to a `struct mnl_socket` on the heap. That structure holds
// a file descriptor and an address, and libmnl keeps no data of a thread beside it (`src/socket.c` of libmnl). The value owns the
// structure and nothing else has the pointer; the type is not `Sync`, so only one thread uses it at a time. The descriptor is valid in
// all threads of the process, and the socket stays in the network namespace of the thread that opened it.
unsafe impl Send for Socket {}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn open(bus: Bus) -> io::Result<Self> {
        let inner = mnl::Socket::open(match bus {
            Bus::Netfilter => mnl::Bus::Netfilter,
            Bus::Route => mnl::Bus::Route,
            Bus::Generic => mnl::Bus::Generic,
            Bus::SockDiag => mnl::Bus::SockDiag,
        })?;
        close_on_exec(&inner)?;
        inner.bind(0, 0)?;
        let socket = Self { inner, buffer: vec![0; READ_SIZE / 8], send_buffer: 0, limit: LONGEST };
        socket.set_option(libc::SOL_NETLINK, CAP_ACK, 1)?;
        socket.set_option(libc::SOL_NETLINK, EXT_ACK, 1)?;
        Ok(socket)
    }

    /// Subscribes to a multicast group.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn join(&self, group: u32) -> io::Result<()> {
        const ADD_MEMBERSHIP: c_int = 1;
        self.set_option(libc::SOL_NETLINK, ADD_MEMBERSHIP, group.cast_signed())
    }

    /// Ends the subscription to a multicast group.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        const DROP_MEMBERSHIP: c_int = 2;
        self.set_option(libc::SOL_NETLINK, DROP_MEMBERSHIP, group.cast_signed())
    }

    /// The port of this socket: its address on the netlink bus, unique in the network namespace.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.inner.portid()
    }

    /// A duplicate of the socket's file descriptor, closed on exec.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        // SAFETY: the descriptor must be open for as long as the `BorrowedFd` lives. `inner` closes it when it is dropped, and `self` is
        // borrowed until the end of this function, which the `BorrowedFd` does not outlive.
        unsafe { BorrowedFd::borrow_raw(self.inner.as_raw_fd()) }.try_clone_to_owned()
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.inner.send(message).map(|_| ())
    }

    /// Sends pages as one datagram. The kernel has carried out or refused the batch in it when this returns.
    ///
    /// # Errors
    /// `EMSGSIZE` beyond [`Self::limit`] or 1,024 pages; `ENOBUFS` or `ENOMEM` when the kernel has no memory for a datagram of this size;
    /// or another error of `sendmsg`. Then the kernel has changed nothing.
    pub fn send_datagram<'a>(&mut self, pages: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut vectors: Vec<libc::iovec> = pages
            .map(|page| libc::iovec { iov_base: page.as_ptr().cast::<c_void>().cast_mut(), iov_len: page.len() })
            .collect();
        let total = vectors.iter().map(|v| v.iov_len).sum();
        self.reserve(total)?;
        // SAFETY: `sockaddr_nl` has only integer fields, for which zero is a valid value. Port 0 is the kernel's.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = narrow::<libc::sa_family_t>(libc::AF_NETLINK, "a small constant");
        // SAFETY: `msghdr` has only integer and pointer fields, for which zero is a valid value: no name, vectors, or control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw mut kernel).cast();
        header.msg_namelen = narrow::<u32>(size_of_val(&kernel), "a small size");
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len();
        // SAFETY: the descriptor is open while `inner` lives. `header` points to `kernel` and to `vectors` with their true lengths, and
        // each vector points to a page with its length. `kernel`, `vectors` and the pages live until after the call, which only reads
        // them, and keeps no pointer.
        let sent = unsafe { libc::sendmsg(self.inner.as_raw_fd(), &raw const header, 0) };
        match usize::try_from(sent) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(sent) if sent == total => Ok(()),
            Ok(_) => Err(io::Error::new(io::ErrorKind::WriteZero, "the kernel took part of a datagram")),
        }
    }

    /// Waits for a datagram and gives its bytes.
    ///
    /// # Errors
    /// `ENOBUFS` when the kernel dropped messages because the receive buffer was full, or another error of `recv`.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        self.receive_with(0)
    }

    /// The next datagram, without waiting; `None` when there is none yet.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_now(&mut self) -> io::Result<Option<&[u8]>> {
        match self.receive_with(libc::MSG_DONTWAIT) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn receive_with(&mut self, flags: c_int) -> io::Result<&[u8]> {
        let room = size_of_val(self.buffer.as_slice());
        let start = self.buffer.as_mut_ptr();
        // SAFETY: the descriptor is open while `inner` lives. `start` points to `room` writable bytes; `self` is borrowed mutably, so
        // nothing else refers to them during the call, and the kernel keeps no pointer to them.
        let read = unsafe { libc::recv(self.inner.as_raw_fd(), start.cast(), room, flags) };
        let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the first `room` bytes from `start` belong to `buffer` and were initialised when it was made; the slice has at most
        // `room` of them, and any address is aligned for `u8`. The slice borrows `self` mutably, so the buffer is neither changed nor
        // freed while the slice lives.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>().cast_const(), read.min(room)) })
    }

    /// The length of the longest datagram that the kernel takes from this process, in bytes, as far as that is known: a process outside the
    /// initial user namespace learns it when a datagram is too long.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Makes the send buffer long enough for a datagram of `len` bytes; the kernel refuses a longer one.
    fn reserve(&mut self, len: usize) -> io::Result<()> {
        if len <= self.send_buffer {
            return Ok(());
        }
        let too_long = || io::Error::from_raw_os_error(libc::EMSGSIZE);
        // The option has 31 bits. The kernel limits it to half of that range and doubles it (`SO_SNDBUFFORCE` in `net/core/sock.c`).
        let size = c_int::try_from(len).map_err(|_| too_long())?;
        let size = size.saturating_add(size / 2).max(1 << 20);
        self.set_buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, size)?;
        self.send_buffer = self.option(libc::SOL_SOCKET, libc::SO_SNDBUF)?.saturating_sub(SEND_OVERHEAD);
        if len > self.send_buffer {
            // More was asked for, so this is all that the kernel gives.
            self.limit = self.send_buffer;
            return Err(too_long());
        }
        Ok(())
    }

    /// Sets the size of the receive buffer, in bytes; the kernel doubles it. The kernel's own data about each message counts too. Outside
    /// the initial user namespace the kernel gives at most sysctl `net.core.rmem_max`.
    ///
    /// # Errors
    /// The error that the kernel answers.
    pub fn reserve_receive(&self, size: usize) -> io::Result<()> {
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        self.set_buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, size)
    }

    /// Sets the size of a buffer with the option `force`, which ignores the limits `net.core.wmem_max` and `net.core.rmem_max` and needs
    /// `CAP_NET_ADMIN` in the initial user namespace, whoever owns the network namespace; without that capability, with `within_limit`.
    fn set_buffer(&self, force: c_int, within_limit: c_int, size: c_int) -> io::Result<()> {
        match self.set_option(libc::SOL_SOCKET, force, size) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                self.set_option(libc::SOL_SOCKET, within_limit, size)
            }
            outcome => outcome,
        }
    }

    /// The value of an option that is a number and not negative.
    fn option(&self, level: c_int, option: c_int) -> io::Result<usize> {
        let mut value: c_int = 0;
        let mut len = narrow::<u32>(size_of_val(&value), "a small size");
        // SAFETY: the descriptor is open while `inner` lives. The pointers are those of `value` and `len`, which live until after the call;
        // `len` is the size of `value`, so the kernel writes no byte beyond it, and it keeps no pointer.
        let result =
            unsafe { libc::getsockopt(self.inner.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(usize::try_from(value).unwrap_or(0)) }
    }

    fn set_option(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        let len = narrow::<u32>(size_of_val(&value), "a small size");
        // SAFETY: the descriptor is open while `inner` lives. Pointer and length are those of `value`, which lives until after the call;
        // the kernel reads it and keeps no pointer to it.
        let result = unsafe { libc::setsockopt(self.inner.as_raw_fd(), level, option, (&raw const value).cast(), len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn close_on_exec(socket: &mnl::Socket) -> io::Result<()> {
    // SAFETY: `F_SETFD` takes an integer and accesses no memory of this process. `socket` owns the descriptor, which is open while it is
    // borrowed.
    let result = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
