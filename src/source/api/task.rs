//! The thread that follows the API server.
//!
//! Takes options, gives a [`Handle`]. All watches run on one thread, one after the other, so their events have an order.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow};
use futures_util::future::select_all;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot, watch};

use super::connection::Connection;
use super::location;
use super::outlet::Outlet;
use super::readiness::{Patience, Progress, ready, tell_missing};
use super::resource::Resource;
use super::watcher::{Surroundings, Timing, Watcher};
use super::{ApiOptions, Observer};
use crate::model::Event;
use crate::supervise::guarded;

/// A running source. Dropping it stops it, without waiting.
#[derive(Debug)]
pub struct Handle {
    stop: Option<oneshot::Sender<()>>,
    failure: oneshot::Receiver<anyhow::Error>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Stops the source and waits for its thread, which takes no longer than converting what just came.
    pub fn stop(mut self) {
        let thread = self.thread.take();
        drop(self);
        // A panic was told of.
        let _ = thread.map(JoinHandle::join);
    }

    /// Waits for an error after which the process cannot go on (M3), a panic among them, or for the source to end by itself.
    pub async fn failed(&mut self) -> anyhow::Error {
        (&mut self.failure).await.unwrap_or_else(|_| anyhow!("the API source ended by itself"))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // A thread that has ended already does not listen.
        let _ = self.stop.take().map(|stop| stop.send(()));
    }
}

/// Starts to follow the API server: all objects are sent, then [`Event::InitialListDone`], then changes.
///
/// Waits for the configuration to be read, not for the server: that may be away for as long as it likes.
///
/// # Errors
/// As for [`super::client`], or there is no thread to be had.
pub fn spawn(options: ApiOptions, sink: SyncSender<Event>, observer: impl Observer) -> Result<Handle> {
    spawn_with(options, sink, observer, Timing::default())
}

/// [`spawn`] with other times.
pub(super) fn spawn_with(
    options: ApiOptions,
    sink: SyncSender<Event>,
    observer: impl Observer,
    timing: Timing,
) -> Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().context("runtime of the API source")?;
    let (stop, stopped) = oneshot::channel();
    let (fail, failure) = oneshot::channel();
    let (tell, started) = sync_channel(1);
    let body = move || {
        let connection = match connect(&runtime, &options) {
            Ok(connection) => connection,
            // The caller waits for it.
            Err(error) => return drop(tell.send(Err(error))),
        };
        drop(tell.send(Ok(())));
        let follow = follow(options, connection, sink, observer, timing, stopped);
        let ended = guarded("the API source's thread", || Ok(runtime.block_on(follow)));
        if let Some(error) = ended.unwrap_or_else(Some) {
            drop(fail.send(error));
        }
        // Looking up a name may take long, and nobody needs it now.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name("api".into()).spawn(body).context("thread of the API source")?;
    let handle = Handle { stop: Some(stop), failure, thread: Some(thread) };
    started.recv().context("the API source ended at once")??;
    Ok(handle)
}

fn connect(runtime: &Runtime, options: &ApiOptions) -> Result<Connection> {
    runtime.block_on(Connection::new(options.client.clone()))
}

/// Runs the watches until they are told to end, nobody listens, or there is an error that ends the process.
async fn follow(
    options: ApiOptions,
    connection: Connection,
    sink: SyncSender<Event>,
    observer: impl Observer,
    timing: Timing,
    stopped: oneshot::Receiver<()>,
) -> Option<anyhow::Error> {
    let outlet = Outlet(sink);
    let (progress, seen) = watch::channel(Progress::default());
    let around = Surroundings {
        node_name: &options.node_name,
        convert: options.convert,
        removal_limit: options.removal_limit,
        outlet: &outlet,
        observer: &observer,
        progress: &progress,
        back: &Notify::new(),
        timing,
    };
    // A watch ends when nobody listens, and then all of them are of no use.
    let watchers = Resource::ALL.map(|resource| Box::pin(Watcher::new(resource, &around, connection.clone()).run()));
    tokio::select! {
        _ = stopped => None,
        _ = select_all(watchers) => None,
        () = location::announce(&options.client, &outlet) => None,
        error = start_up(&options, seen, &outlet, &observer) => Some(error),
    }
}

/// Says when everything is listed, then waits for ever; gives the error that ends the process.
async fn start_up(
    options: &ApiOptions,
    progress: watch::Receiver<Progress>,
    outlet: &Outlet,
    observer: &impl Observer,
) -> anyhow::Error {
    let patience = Patience::new(options.needs_pod_cidrs);
    let tell = tell_missing(progress.clone(), patience, |missing| observer.waiting_for(missing));
    let listed = tokio::select! {
        listed = ready(progress, &options.node_name, patience) => listed,
        () = tell => return std::future::pending().await,
    };
    if let Err(error) = listed {
        return error;
    }
    // Before the event: who gets that has the next word.
    observer.waiting_for(&[]);
    // Without a receiver the watches end.
    let _ = outlet.send(Event::InitialListDone).await;
    std::future::pending().await
}
