//! An observer that writes down what it is told.

use std::sync::{Arc, Mutex};

use super::{ListenFailure, Observer, Page};

/// What was told, one line each.
#[derive(Default)]
pub(super) struct Notes(Mutex<Vec<String>>);

impl Notes {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The lines since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for Notes {
    fn answered(&self, page: Page, code: u16) {
        self.0.lock().unwrap().push(format!("{page:?} {code}"));
    }

    fn listen_failed(&self, failure: &ListenFailure) {
        let ListenFailure { service, family, port, error } = failure;
        self.0.lock().unwrap().push(format!("{service} {family} {port} {:?}", error.kind()));
    }
}
