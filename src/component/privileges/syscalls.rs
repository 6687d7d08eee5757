//! Allows only the system calls that the running proxy uses; every other system call fails with EPERM, and clone3 with ENOSYS.
//!
//! The list contains the calls of the proxy, its libraries and glibc that strace showed in the tests, and the calls that other versions of
//! glibc and aarch64 use instead. If the list lacks a call, the feature that uses the call gets an error, and the process continues.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use super::Restriction;

/// Why system calls cannot be filtered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not valid.
    #[error(transparent)]
    Build(#[from] seccompiler::BackendError),
    /// The kernel does not accept the filter.
    #[error(transparent)]
    Apply(seccompiler::Error),
}

/// The system calls that are allowed with any arguments.
#[rustfmt::skip] // one line for each would hide the groups
const FREE: &[c_long] = &[
    // Opening, reading and watching files, and using open file descriptors.
    libc::SYS_read, libc::SYS_readv, libc::SYS_pread64, libc::SYS_write, libc::SYS_writev, libc::SYS_close,
    libc::SYS_lseek, libc::SYS_openat, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_getdents64,
    libc::SYS_readlinkat, libc::SYS_faccessat, libc::SYS_faccessat2, libc::SYS_fcntl, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_pipe2, libc::SYS_ioctl, libc::SYS_flock, libc::SYS_getcwd, libc::SYS_fstatfs,
    libc::SYS_inotify_init1, libc::SYS_inotify_add_watch, libc::SYS_inotify_rm_watch,
    // Sockets. Function `rules` restricts which sockets the process can create.
    libc::SYS_bind, libc::SYS_listen, libc::SYS_accept4, libc::SYS_connect, libc::SYS_shutdown, libc::SYS_getsockname,
    libc::SYS_getpeername, libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_sendto, libc::SYS_sendmsg,
    libc::SYS_sendmmsg, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg,
    // Waiting for sockets and timers.
    libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2, libc::SYS_ppoll,
    libc::SYS_pselect6, libc::SYS_eventfd2, libc::SYS_timerfd_create, libc::SYS_timerfd_settime, libc::SYS_futex,
    libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_restart_syscall, libc::SYS_sched_yield,
    // Allocation of memory.
    libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads, signals, and identity.
    libc::SYS_clone3, libc::SYS_set_robust_list, libc::SYS_rseq, libc::SYS_set_tid_address, libc::SYS_gettid,
    libc::SYS_getpid, libc::SYS_getppid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid,
    libc::SYS_tgkill, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn, libc::SYS_sigaltstack,
    libc::SYS_exit, libc::SYS_exit_group, libc::SYS_prctl, libc::SYS_prlimit64, libc::SYS_sched_getaffinity,
    libc::SYS_getrusage, libc::SYS_sysinfo, libc::SYS_uname, libc::SYS_getrandom, libc::SYS_clock_gettime,
    libc::SYS_clock_getres, libc::SYS_gettimeofday, libc::SYS_times,
];

/// Older system calls that only x86_64 has, allowed with any arguments.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const FREE_HERE: &[c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink, libc::SYS_dup2,
    libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_select, libc::SYS_arch_prctl, libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const FREE_HERE: &[c_long] = &[];

/// The domains of sockets that the process can create, for name resolution and HTTP. Unix sockets to nscd or systemd-resolved are not
/// allowed, because name resolution works without these daemons.
const DOMAINS: [i32; 2] = [libc::AF_INET, libc::AF_INET6];
/// The allowed netlink protocols: one for addresses and interfaces, which name resolution uses too, and one for nf_tables and conntrack.
const NETLINKS: [i32; 2] = [libc::NETLINK_ROUTE, libc::NETLINK_NETFILTER];

/// Enforces the filter for this thread and all threads that it starts. `splice` allows system call splice.
pub(super) fn filter(splice: bool) -> Result<Restriction, Error> {
    let Ok(arch) = TargetArch::try_from(ARCH) else { return Ok(Restriction::Unavailable) };
    for program in programs(arch, splice)? {
        match apply_filter(&program) {
            Ok(()) => {}
            Err(seccompiler::Error::Seccomp(error)) if error.raw_os_error() == Some(libc::ENOSYS) => {
                return Ok(Restriction::Unavailable);
            }
            Err(error) => return Err(Error::Apply(error)),
        }
    }
    Ok(Restriction::Enforced)
}

fn programs(arch: TargetArch, splice: bool) -> Result<[BpfProgram; 2], Error> {
    // A filter cannot read the arguments of clone3, because they are in memory. The error ENOSYS makes glibc use clone instead, whose flags
    // show whether the call makes a thread.
    let unsupported = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let no_clone3 = SeccompFilter::new(unsupported, SeccompAction::Allow, errno(libc::ENOSYS), arch)?;
    let allowed = SeccompFilter::new(rules(splice)?, errno(libc::EPERM), SeccompAction::Allow, arch)?;
    Ok([BpfProgram::try_from(no_clone3)?, BpfProgram::try_from(allowed)?])
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number.unsigned_abs())
}

fn rules(splice: bool) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = FREE
        .iter()
        .chain(FREE_HERE)
        .chain(splice.then_some(&libc::SYS_splice))
        .map(|call| (*call, Vec::new()))
        .collect();
    let is = |index, value| argument(index, SeccompCmpOp::Eq, value);
    let mut sockets = Vec::new();
    for domain in DOMAINS {
        sockets.push(SeccompRule::new(vec![is(0, domain)?])?);
    }
    for protocol in NETLINKS {
        sockets.push(SeccompRule::new(vec![is(0, libc::AF_NETLINK)?, is(2, protocol)?])?);
    }
    rules.insert(libc::SYS_socket, sockets);
    // The signal handling of tokio uses a pair of Unix sockets.
    rules.insert(libc::SYS_socketpair, vec![SeccompRule::new(vec![is(0, libc::AF_UNIX)?])?]);
    let mask = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let is_thread = argument(0, SeccompCmpOp::MaskedEq(mask), libc::CLONE_THREAD)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![is_thread])?]);
    Ok(rules)
}

fn argument(index: u8, operator: SeccompCmpOp, value: i32) -> Result<SeccompCondition, Error> {
    let value = u64::from(value.unsigned_abs());
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?)
}
