//! Which tests may run at the same time: those with deadlines beside each other, those that load the machine alone.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// Keeps every other test of this binary waiting while the guard lives: for tests that load the machine.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    // A test that failed leaves the lock poisoned; the others are not affected.
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps those waiting that want to be alone: for tests with deadlines.
pub(crate) fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}
