//! Runs the tasks and threads that must not fail while the process runs.
//!
//! The module starts each task or thread with a name and reports its failure, at which the caller ends the process. A panic is a failure as
//! well, and its text begins with the name of the task or thread. A task or thread that ends without an error is not reported.

use std::any::Any;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};

use anyhow::Result;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The error that a task or a thread panicked, which is a defect of the program.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(String);

impl Panicked {
    /// The exit code after a panic, which is also the exit code of a Go program, and so of upstream.
    pub const EXIT_CODE: u8 = 2;
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
    /// Starts a task on the current runtime. If the task panics, the text of the failure begins with `name`, such as "the metrics server's
    /// task".
    pub fn task(&self, name: &'static str, work: impl Future<Output = Result<()>> + Send + 'static) {
        let (supervisor, task) = (self.clone(), tokio::spawn(work));
        tokio::spawn(async move {
            supervisor.report(match task.await {
                Ok(outcome) => outcome,
                // An error other than a panic means that the runtime aborted the task because the runtime ended, which is no failure.
                Err(error) => error.try_into_panic().map_or(Ok(()), |panic| Err(panicked(name, &*panic))),
            });
        });
    }

    /// Starts a thread. `short` is the thread's name in the kernel, at most 15 bytes; the text of a panic begins with `name`.
    ///
    /// # Errors
    /// Fails when the system cannot start another thread.
    pub fn thread(
        &self,
        short: &str,
        name: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let supervisor = self.clone();
        thread::Builder::new().name(short.into()).spawn(move || supervisor.report(guarded(name, work)))
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

/// Runs `work` and turns a panic into an error whose text begins with `name`.
///
/// # Errors
/// Returns any error of `work`, or an error if `work` panics. After a panic, do not use values that `work` changes.
pub fn guarded<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(name, &*panic)))
}

fn panicked(name: &str, panic: &(dyn Any + Send)) -> anyhow::Error {
    Panicked(format!("{name} panicked: {}", text_of(panic))).into()
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
    async fn a_task_that_panics_is_a_failure_with_its_name() {
        let (supervisor, mut failures) = new();
        supervisor.task("the metrics server's task", async { panic!("no {}", "metrics") });
        assert_eq!(next(&mut failures).await, "the metrics server's task panicked: no metrics");
        supervisor.task("the health servers' task", async { panic!("plain") });
        assert_eq!(next(&mut failures).await, "the health servers' task panicked: plain");
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_a_failure_with_its_name() {
        let (supervisor, mut failures) = new();
        let thread = supervisor.thread("config-watch", "the configuration watcher's thread", || panic!("out of files"));
        assert_eq!(next(&mut failures).await, "the configuration watcher's thread panicked: out of files");
        assert!(thread.unwrap().join().is_ok(), "the panic ended there");
        supervisor.thread("odd", "the odd thread", || std::panic::panic_any(7)).unwrap();
        assert_eq!(next(&mut failures).await, "the odd thread panicked: without a message");
    }

    #[tokio::test]
    async fn errors_are_failures_as_they_are_and_a_good_end_is_none() {
        let (supervisor, mut failures) = new();
        supervisor.task("a task", async { Ok(()) });
        supervisor.thread("thread", "a thread", || Ok(())).unwrap().join().unwrap();
        tokio::task::yield_now().await;
        supervisor.task("a task", async { Err(anyhow!("the address is in use")) });
        assert_eq!(next(&mut failures).await, "the address is in use");
        supervisor.thread("thread", "a thread", || Err(anyhow!("the file was updated"))).unwrap();
        assert_eq!(next(&mut failures).await, "the file was updated");
    }
}
