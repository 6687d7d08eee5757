//! Starts the threads and tasks of the program, and reports their failures.
//!
//! Errors: a [`Supervisor`] starts threads and tasks that must not fail while the process runs, and reports the error of one, at which the
//! caller ends the process. A thread or task that ends without an error is not reported.
//!
//! Panics: a process with a log ends when any of its threads or tasks panics, including those of libraries (`logging`). Otherwise a process
//! could look alive without doing all of its work. [`contained`] work is the exception: it serves one client, and a client must not be able
//! to end the process.

use std::any::Any;
use std::env;
use std::future::Future;
use std::io;
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};

use anyhow::Result;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The exit code after a panic, which is also that of a Go program, and so of upstream.
pub const PANIC_EXIT_CODE: u8 = 2;

/// An environment variable of debug builds: the thread with this name panics when it starts, so that tests can check the effect of a panic in
/// each thread. Release builds ignore the variable, so that it cannot end a proxy.
const PANIC: &str = "KUBE_PROXY_NFT_PANIC";

tokio::task_local! {
    /// Set while the work for one client is polled.
    static CONTAINED: ();
}

/// Starts tasks and threads. Clones report to the same [`Failures`].
#[derive(Clone, Debug)]
pub struct Supervisor(UnboundedSender<anyhow::Error>);

/// Receives the failures of tasks and threads.
#[derive(Debug)]
pub struct Failures {
    receiver: UnboundedReceiver<anyhow::Error>,
    /// A sender that keeps the channel open after all tasks and threads have ended.
    _supervisor: Supervisor,
}

/// Returns a supervisor, and the receiver of the failures that it reports.
#[must_use]
pub fn new() -> (Supervisor, Failures) {
    let (sender, receiver) = unbounded_channel();
    (Supervisor(sender.clone()), Failures { receiver, _supervisor: Supervisor(sender) })
}

impl Supervisor {
    /// Starts a task on the current runtime.
    pub fn task(&self, work: impl Future<Output = Result<()>> + Send + 'static) {
        let supervisor = self.clone();
        tokio::spawn(async move { supervisor.report(work.await) });
    }

    /// Starts a thread. `name` is the thread's name in the kernel, at most 15 bytes.
    ///
    /// # Errors
    /// Fails when the system cannot start another thread.
    pub fn thread(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let supervisor = self.clone();
        thread(name, move || supervisor.report(work()))
    }

    fn report(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            // Ignore the error: the receiver is dropped only when the process ends.
            let _ = self.0.send(error);
        }
    }
}

impl Failures {
    /// Waits for the next failure.
    pub async fn next(&mut self) -> anyhow::Error {
        match self.receiver.recv().await {
            Some(error) => error,
            // The channel never closes, because this value holds a sender.
            None => std::future::pending().await,
        }
    }
}

/// Starts a thread that reports no error. `name` is the thread's name in the kernel, at most 15 bytes.
///
/// # Errors
/// Fails when the system cannot start another thread.
pub fn thread<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(move || begin(name, work))
}

/// Starts a thread that ends with `scope`. `name` is the thread's name in the kernel, at most 15 bytes.
///
/// # Errors
/// Fails when the system cannot start another thread.
pub fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().name(name.into()).spawn_scoped(scope, move || begin(name, work))
}

fn begin<T>(name: &str, work: impl FnOnce() -> T) -> T {
    if cfg!(debug_assertions) {
        assert!(env::var(PANIC).as_deref() != Ok(name), "{PANIC} names this thread");
    }
    work()
}

/// Returns a future that does the work for one client: a panic in it ends this work, but not the process.
pub fn contained<F: Future>(work: F) -> impl Future<Output = F::Output> {
    CONTAINED.scope((), work)
}

/// Whether the caller does [`contained`] work.
pub(crate) fn is_contained() -> bool {
    CONTAINED.try_with(|()| ()).is_ok()
}

/// Returns the message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::anyhow;
    use tokio::time::timeout;

    use super::*;

    async fn next(failures: &mut Failures) -> String {
        timeout(Duration::from_secs(20), failures.next()).await.expect("a failure").to_string()
    }

    #[tokio::test]
    async fn errors_are_failures_as_they_are_and_a_good_end_is_none() {
        let (supervisor, mut failures) = new();
        supervisor.task(async { Ok(()) });
        supervisor.thread("thread", || Ok(())).unwrap().join().unwrap();
        tokio::task::yield_now().await;
        supervisor.task(async { Err(anyhow!("the address is in use")) });
        assert_eq!(next(&mut failures).await, "the address is in use");
        supervisor.thread("thread", || Err(anyhow!("the file was updated"))).unwrap();
        assert_eq!(next(&mut failures).await, "the file was updated");
    }

    #[test]
    fn the_message_of_a_panic_is_its_text() {
        let text = |panic: fn()| text_of(&*std::panic::catch_unwind(panic).unwrap_err()).to_owned();
        assert_eq!(text(|| panic!("plain")), "plain");
        assert_eq!(text(|| panic!("no {}", "metrics")), "no metrics");
        assert_eq!(text(|| std::panic::panic_any(7)), "without a message");
    }

    #[tokio::test]
    async fn only_work_for_a_client_is_contained_also_between_other_tasks() {
        let (go, wait) = tokio::sync::oneshot::channel();
        let client = tokio::spawn(contained(async move {
            let before = is_contained();
            wait.await.unwrap();
            before && is_contained() && !tokio::spawn(async { is_contained() }).await.unwrap()
        }));
        tokio::task::yield_now().await;
        assert!(!is_contained());
        go.send(()).unwrap();
        assert!(client.await.unwrap());
    }
}
