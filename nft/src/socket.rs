//! Netlink sockets: one datagram out, whatever comes back in.
//!
//! The `mnl` crate opens, binds and reads. What it lacks is here: a batch must reach the kernel in one `sendmsg` however large it is
//! (its own `send_all` sends page by page, which the kernel refuses or, worse, ignores), reading without waiting, and socket options.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Which part of the kernel a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bus {
    /// nf_tables and conntrack.
    Netfilter,
    /// Addresses, links and routes.
    Route,
}

/// `NETLINK_CAP_ACK`: acknowledgements do not repeat the request.
const CAP_ACK: c_int = 10;
/// `NETLINK_EXT_ACK`: errors say which attribute they are about.
const EXT_ACK: c_int = 11;
/// Receive buffer of one read: the kernel fills dumps up to 32 KiB a datagram.
const READ_SIZE: usize = 64 * 1024;

/// A netlink socket, closed on exec.
pub struct Socket {
    inner: mnl::Socket,
    /// 64-bit words, because netlink messages are read in place and must be aligned.
    buffer: Vec<u64>,
    send_buffer: usize,
}

// SAFETY: the only field that is not `Send` is the pointer of `mnl::Socket` to a `struct mnl_socket`: a descriptor and an address, on
// the heap, with no state of a thread beside it (`src/socket.c` of libmnl). The value owns it, nobody else has the pointer, and there
// is no `Sync`, so one thread at a time uses it. A netlink socket keeps the network namespace of the thread that opened it.
unsafe impl Send for Socket {}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn open(bus: Bus) -> io::Result<Self> {
        let inner = mnl::Socket::open(match bus {
            Bus::Netfilter => mnl::Bus::Netfilter,
            Bus::Route => mnl::Bus::Route,
        })?;
        close_on_exec(&inner)?;
        inner.bind(0, 0)?;
        let socket = Self { inner, buffer: vec![0; READ_SIZE / 8], send_buffer: 0 };
        socket.set_option(libc::SOL_NETLINK, CAP_ACK, 1)?;
        socket.set_option(libc::SOL_NETLINK, EXT_ACK, 1)?;
        Ok(socket)
    }

    /// Subscribes to a multicast group.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn join(&self, group: u32) -> io::Result<()> {
        const ADD_MEMBERSHIP: c_int = 1;
        self.set_option(libc::SOL_NETLINK, ADD_MEMBERSHIP, group.cast_signed())
    }

    /// Ends a subscription.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn leave(&self, group: u32) -> io::Result<()> {
        const DROP_MEMBERSHIP: c_int = 2;
        self.set_option(libc::SOL_NETLINK, DROP_MEMBERSHIP, group.cast_signed())
    }

    /// The number by which the kernel knows this socket.
    #[must_use]
    pub fn port(&self) -> u32 {
        self.inner.portid()
    }

    /// Another handle of the same socket, closed on exec.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        // SAFETY: the descriptor is open for as long as `inner` lives, which is longer than this borrow.
        unsafe { BorrowedFd::borrow_raw(self.inner.as_raw_fd()) }.try_clone_to_owned()
    }

    /// Sends one message.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        self.inner.send(message).map(|_| ())
    }

    /// Sends pages as one datagram. The kernel has dealt with it when this returns.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`; `EMSGSIZE` beyond some 2 GiB or 1,024 pages; `ENOBUFS` or `ENOMEM` when the kernel has no
    /// memory for a datagram of this size; or what else it answers. Nothing was changed then.
    pub fn send_datagram<'a>(&mut self, pages: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut vectors: Vec<libc::iovec> = pages
            .map(|page| libc::iovec { iov_base: page.as_ptr().cast::<c_void>().cast_mut(), iov_len: page.len() })
            .collect();
        let total = vectors.iter().map(|v| v.iov_len).sum();
        self.reserve(total)?;
        // SAFETY: an all-zero `sockaddr_nl` is valid; it addresses the kernel once the family is set.
        let mut kernel: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        kernel.nl_family = libc::sa_family_t::try_from(libc::AF_NETLINK).expect("a small constant");
        // SAFETY: an all-zero `msghdr` is valid: no name, no vectors, no control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = (&raw mut kernel).cast();
        header.msg_namelen = u32::try_from(size_of_val(&kernel)).expect("a small size");
        header.msg_iov = vectors.as_mut_ptr();
        header.msg_iovlen = vectors.len();
        // SAFETY: `header` points to `kernel` and `vectors`, which point to `pages`; all of them outlive the call, which only reads.
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
    /// `ENOBUFS` when messages were lost, or what else the kernel answers.
    pub fn receive(&mut self) -> io::Result<&[u8]> {
        self.receive_with(0)
    }

    /// The next datagram that is there already; `None` when there is none.
    ///
    /// # Errors
    /// `ENOBUFS` when messages were lost, or what else the kernel answers.
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
        // SAFETY: `start` points to `room` writable bytes that nothing else refers to during the call.
        let read = unsafe { libc::recv(self.inner.as_raw_fd(), start.cast(), room, flags) };
        let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the bytes belong to `buffer`, were initialised when it was made, and `recv` reports at most `room` without
        // MSG_TRUNC; the slice borrows `self`, so the buffer stays as it is while it lives.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<u8>().cast_const(), read.min(room)) })
    }

    /// Makes room for a datagram: the kernel refuses one that is longer than the send buffer.
    fn reserve(&mut self, len: usize) -> io::Result<()> {
        if len <= self.send_buffer {
            return Ok(());
        }
        // The kernel takes half of this range and doubles it (`__sock_set_sndbuf` in net/core/sock.c). A longer datagram would be cut.
        let size = c_int::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let size = size.saturating_add(size / 2).max(1 << 20);
        self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, size)?;
        self.send_buffer = len;
        Ok(())
    }

    /// Makes room for messages that wait to be received, in bytes with what the kernel needs to keep them.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn reserve_receive(&self, size: usize) -> io::Result<()> {
        let size = c_int::try_from(size).unwrap_or(c_int::MAX);
        self.set_option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size)
    }

    fn set_option(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        let len = u32::try_from(size_of_val(&value)).expect("a small size");
        // SAFETY: the pointer and length describe `value`, which outlives the call.
        let result = unsafe { libc::setsockopt(self.inner.as_raw_fd(), level, option, (&raw const value).cast(), len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn close_on_exec(socket: &mnl::Socket) -> io::Result<()> {
    // SAFETY: sets a flag of a file descriptor that the socket owns; no memory is involved.
    let result = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
