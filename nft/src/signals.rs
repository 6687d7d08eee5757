//! Unblocks the signals that a process inherits as blocked: some supervisors block signals in the processes that they start, and SIGTERM
//! would never arrive.

use std::ptr;

/// Unblocks all signals for the calling thread and the threads that it starts. Signals that the parent process ignores stay ignored, as
/// `nohup` needs for SIGHUP, until the process sets a handler for them.
pub fn unblock_all() {
    // SAFETY: `sigset_t` has only integers, for which zero is a valid value, and `sigemptyset` makes it the empty set. Pointers to it are
    // used during the calls alone; a null pointer says that the former mask is not wanted. Neither call can fail with these arguments.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}
