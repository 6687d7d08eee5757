//! Error numbers as plain integers, which is how netlink messages carry them.

use rustix::io::Errno;

pub(crate) const EPERM: i32 = Errno::PERM.raw_os_error();
pub(crate) const ENOENT: i32 = Errno::NOENT.raw_os_error();
pub(crate) const ESRCH: i32 = Errno::SRCH.raw_os_error();
pub(crate) const EAGAIN: i32 = Errno::AGAIN.raw_os_error();
pub(crate) const EEXIST: i32 = Errno::EXIST.raw_os_error();
pub(crate) const EBUSY: i32 = Errno::BUSY.raw_os_error();
pub(crate) const ENODEV: i32 = Errno::NODEV.raw_os_error();
pub(crate) const ENOBUFS: i32 = Errno::NOBUFS.raw_os_error();
