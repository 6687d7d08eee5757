//! Watches for changes of the node's addresses.
//!
//! A thread receives the kernel's notifications about addresses and wakes the sync loop, which asks for [`AddressNews`] in each of its
//! passes. The thread does not decode the notifications, because the sync loop lists the addresses after a change anyway. After each change the thread
//! pauses for a moment, so that a node that starts hundreds of pods, each with addresses of its own, lists its addresses at most ten times
//! a second.
//!
//! Invariant: without a subscription, [`AddressWatch::news`] returns at most one change from before, and then [`AddressNews::Unwatched`];
//! after a new subscription it returns [`AddressNews::Changed`]. So no change is lost between two subscriptions.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::kernel::errno::ENOBUFS;
use component::supervise;
use nft::socket::{Bus, Socket};

/// `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` of `linux/rtnetlink.h`.
const GROUPS: [u32; 2] = [5, 9];
/// The shortest time between two reported changes: at most ten lists of addresses a second.
const PAUSE: Duration = Duration::from_millis(100);
/// The largest number of datagrams that count as one change.
const AT_ONCE: usize = 1024;
/// The time from a failed subscription to the next try.
const RETRY: Duration = Duration::from_secs(5);

/// The kernel's reports about the node's addresses since the last call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressNews {
    /// There is no subscription, so the caller has to list the addresses at intervals.
    #[default]
    Unwatched,
    /// No address has changed.
    None,
    /// Addresses may have changed.
    Changed,
}

/// The handle of the thread that watches the addresses of one network namespace. The thread may be without a subscription for a while:
/// see [`AddressNews::Unwatched`].
pub(super) struct AddressWatch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_subscribed: AtomicBool,
    has_changed: AtomicBool,
}

impl AddressWatch {
    /// Starts the thread in the network namespace of the calling thread. The thread calls `wake` when it has news. After this value is
    /// dropped, the thread ends at its next notification.
    ///
    /// # Errors
    /// Fails when the system cannot start another thread.
    pub(super) fn new(wake: impl Fn() + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let weak = Arc::downgrade(&shared);
        supervise::thread("address-watch", move || follow(&weak, &wake))?;
        Ok(Self(shared))
    }

    /// Returns the kernel's reports since the last call.
    pub(super) fn news(&self) -> AddressNews {
        let has_changed = self.0.has_changed.swap(false, Ordering::AcqRel);
        match (has_changed, self.0.is_subscribed.load(Ordering::Acquire)) {
            (true, _) => AddressNews::Changed,
            (false, true) => AddressNews::None,
            (false, false) => AddressNews::Unwatched,
        }
    }
}

/// Subscribes to notifications, and again whenever the socket fails, until the [`AddressWatch`] is dropped.
fn follow(shared: &Weak<Shared>, wake: &impl Fn()) {
    loop {
        if let Ok(socket) = subscribe()
            && read(socket, shared, wake).is_none()
        {
            return;
        }
        // Until there is a socket again, the sync loop lists the addresses once a second.
        let Some(shared) = shared.upgrade() else { return };
        shared.is_subscribed.store(false, Ordering::Release);
        drop(shared);
        wake();
        thread::sleep(RETRY);
    }
}

fn subscribe() -> io::Result<Socket> {
    let socket = Socket::open(Bus::Route)?;
    GROUPS.into_iter().try_for_each(|group| socket.join(group))?;
    Ok(socket)
}

/// Reports each notification to the sync loop, until the socket fails. Returns `None` once the [`AddressWatch`] is dropped.
fn read(mut socket: Socket, shared: &Weak<Shared>, wake: &impl Fn()) -> Option<()> {
    // Addresses may have changed before the subscription, so report a change.
    note(shared, wake)?;
    loop {
        thread::sleep(PAUSE);
        match socket.receive() {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(ENOBUFS) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Some(()),
        }
        // Count all datagrams that have arrived as one change. Limit their number, because more may arrive all the time.
        for _ in 0..AT_ONCE {
            if !matches!(socket.receive_now(), Ok(Some(_))) {
                break;
            }
        }
        note(shared, wake)?;
    }
}

fn note(shared: &Weak<Shared>, wake: &impl Fn()) -> Option<()> {
    let shared = shared.upgrade()?;
    shared.has_changed.store(true, Ordering::Release);
    shared.is_subscribed.store(true, Ordering::Release);
    wake();
    Some(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    // A new subscription first reports a change.
    #[test]
    fn the_first_news_is_a_change() {
        let watch = AddressWatch::new(|| ()).unwrap();
        let end = Instant::now() + PATIENCE;
        while watch.news() != AddressNews::Changed {
            assert!(Instant::now() < end, "no news");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(watch.news(), AddressNews::None);
    }

    #[test]
    fn before_a_subscription_and_after_a_failed_one_nothing_is_watched() {
        let watch = AddressWatch(Arc::new(Shared::default()));
        assert_eq!(watch.news(), AddressNews::Unwatched);
        note(&Arc::downgrade(&watch.0), &|| ()).unwrap();
        assert_eq!([watch.news(), watch.news()], [AddressNews::Changed, AddressNews::None]);
        watch.0.is_subscribed.store(false, Ordering::Release);
        assert_eq!(watch.news(), AddressNews::Unwatched);
    }
}
