//! Notes that the node's addresses changed.
//!
//! Takes the kernel's notifications about addresses; gives [`AddressNews`], for which the sync loop asks at each of its passes. A thread waits for them. It does not
//! look into them: a change counts once the addresses are listed. After each change it pauses for a moment, so that a node that starts
//! hundreds of pods, each with addresses of its own, lists its addresses at most ten times a second.
//!
//! Invariant: as long as nothing is subscribed to, the news is [`AddressNews::Unwatched`], and after a new subscription
//! [`AddressNews::Changed`], so no change is lost between two subscriptions.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::kernel::errno::ENOBUFS;
use nft::socket::{Bus, Socket};

/// `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` of `linux/rtnetlink.h`.
const GROUPS: [u32; 2] = [5, 9];
/// The least time between two changes that are noted.
const PAUSE: Duration = Duration::from_millis(100);
/// Datagrams that are taken for one change.
const AT_ONCE: usize = 1024;
/// Time from a failed subscription to the next.
const RETRY: Duration = Duration::from_secs(5);

/// What the kernel reported about the node's addresses since it was last asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressNews {
    /// Nothing is reported, so they have to be listed now and then.
    #[default]
    Unwatched,
    /// They are what they were.
    None,
    /// They may have changed.
    Changed,
}

/// A subscription in one network namespace.
pub(super) struct AddressWatch(Arc<Shared>);

#[derive(Default)]
struct Shared {
    is_subscribed: AtomicBool,
    has_changed: AtomicBool,
}

impl AddressWatch {
    /// Starts the thread, in the network namespace of the calling one. It ends after its next notification when this value was dropped.
    ///
    /// # Errors
    /// When the system cannot start another thread.
    pub(super) fn new() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let weak = Arc::downgrade(&shared);
        thread::Builder::new().name("address-watch".into()).spawn(move || follow(&weak))?;
        Ok(Self(shared))
    }

    /// What was reported since the last call.
    pub(super) fn news(&self) -> AddressNews {
        let has_changed = self.0.has_changed.swap(false, Ordering::AcqRel);
        match (has_changed, self.0.is_subscribed.load(Ordering::Acquire)) {
            (true, _) => AddressNews::Changed,
            (false, true) => AddressNews::None,
            (false, false) => AddressNews::Unwatched,
        }
    }
}

/// Subscribes, and again after a socket failed, for as long as somebody wants to know.
fn follow(shared: &Weak<Shared>) {
    loop {
        if let Ok(socket) = subscribe()
            && read(socket, shared).is_none()
        {
            return;
        }
        // Until there is a socket again, the addresses are listed once a second.
        let Some(shared) = shared.upgrade() else { return };
        shared.is_subscribed.store(false, Ordering::Release);
        drop(shared);
        thread::sleep(RETRY);
    }
}

fn subscribe() -> io::Result<Socket> {
    let socket = Socket::open(Bus::Route)?;
    GROUPS.into_iter().try_for_each(|group| socket.join(group))?;
    Ok(socket)
}

/// Notes each notification, until the socket fails. `None` when nobody wants to know any more.
fn read(mut socket: Socket, shared: &Weak<Shared>) -> Option<()> {
    // What changed before the subscription was not notified.
    note(shared)?;
    loop {
        thread::sleep(PAUSE);
        match socket.receive() {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(ENOBUFS) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Some(()),
        }
        // All that is there is one change. Not for ever, because more may come all the time.
        for _ in 0..AT_ONCE {
            if !matches!(socket.receive_now(), Ok(Some(_))) {
                break;
            }
        }
        note(shared)?;
    }
}

fn note(shared: &Weak<Shared>) -> Option<()> {
    let shared = shared.upgrade()?;
    shared.has_changed.store(true, Ordering::Release);
    shared.is_subscribed.store(true, Ordering::Release);
    Some(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    // What happened before the subscription is news; `tests/packets` has addresses that come and go.
    #[test]
    fn the_first_news_is_a_change() {
        let watch = AddressWatch::new().unwrap();
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
        note(&Arc::downgrade(&watch.0)).unwrap();
        assert_eq!([watch.news(), watch.news()], [AddressNews::Changed, AddressNews::None]);
        watch.0.is_subscribed.store(false, Ordering::Release);
        assert_eq!(watch.news(), AddressNews::Unwatched);
    }
}
