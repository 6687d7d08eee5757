//! Serves a watch: sends the present objects if the client wants them, then every change, with bookmarks, until its time is over.

use std::time::Duration;

use hyper::body::Bytes;
use serde_json::json;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, interval_at, sleep_until};

use super::Format;
use super::fault::Command;
use super::list::{number, selector};
use super::query::Query;
use super::resource::Resource;
use super::selector::Selector;
use super::state::{List, Open, Orders, Shared, Streaming};
use super::status::Refusal;
use super::store::{Notice, Store, TooOld};
use super::writer::{Over, Writer};

/// How long a watch lasts if its request has no `timeoutSeconds`; a real server picks 30 to 60 minutes.
const LIFE: Duration = Duration::from_secs(45 * 60);
/// How many bytes [`Command::Flood`] sends at once.
const WAVE: usize = 64 << 10;

/// A watch as it was asked for.
#[derive(Debug)]
pub(crate) struct Watch {
    format: Format,
    resource: Resource,
    selector: Selector,
    /// The version after which changes are sent; `None` if the present objects are sent first.
    from: Option<u64>,
    /// Whether the client asked for the bookmark after the present objects.
    tells_end: bool,
    bookmarks: bool,
    life: Duration,
}

impl Watch {
    /// Reads the query.
    pub(crate) fn parse(
        format: Format,
        resource: Resource,
        query: &Query,
        streaming: Streaming,
    ) -> Result<Self, Refusal> {
        let wish = query.get("sendInitialEvents");
        let forbidden = |why: &str| Refusal::new(422, format!("ListOptions is invalid: {why}"));
        if streaming == Streaming::Refused && !wish.is_empty() {
            return Err(forbidden("sendInitialEvents is forbidden unless the feature WatchList is enabled"));
        }
        let wish = if streaming == Streaming::On { wish } else { "" };
        let rule = query.get("resourceVersionMatch");
        if streaming == Streaming::On && (wish.is_empty() != rule.is_empty()) {
            return Err(forbidden("sendInitialEvents and resourceVersionMatch need each other in a watch"));
        }
        if !wish.is_empty() && rule != "NotOlderThan" {
            return Err(forbidden("sendInitialEvents requires resourceVersionMatch NotOlderThan"));
        }
        let streams = query.is_true("sendInitialEvents") && !wish.is_empty();
        let version = number(query.get("resourceVersion"))?;
        let life = match query.get("timeoutSeconds") {
            "" | "0" => LIFE,
            text => {
                let seconds = text.parse().map_err(|_| Refusal::new(400, "timeoutSeconds is no number"))?;
                Duration::from_secs(seconds)
            }
        };
        Ok(Self {
            format,
            resource,
            selector: selector(resource, query)?,
            from: version.filter(|version| *version > 0 && !streams),
            tells_end: streams && query.is_true("allowWatchBookmarks"),
            bookmarks: query.is_true("allowWatchBookmarks"),
            life,
        })
    }

    /// Sends what there is to send, until the time is over, the client goes away or the watch is ended.
    pub(crate) async fn run(self, open: Open, mut orders: Orders, mut writer: Writer) -> Result<(), Over> {
        let shared = &open.shared;
        let mut changed = shared.changes();
        let (pause, longest) = {
            let state = shared.lock();
            (state.bookmark_every, state.longest_watch)
        };
        let end = Instant::now() + self.life.min(longest);
        let mut bookmarks = interval_at(Instant::now() + pause, pause);
        let mut version = match self.from {
            Some(version) => version,
            None => self.send_present(shared, &mut writer).await?,
        };
        loop {
            version = self.send_changes(shared, version, &mut writer).await?;
            tokio::select! {
                // The sender lives as long as the server.
                _ = changed.changed() => {}
                order = orders.recv() => match order {
                    Ok((resource, command)) if resource.is_none_or(|resource| resource == self.resource) => {
                        // Changes from before the order are sent before it is carried out.
                        version = self.send_changes(shared, version, &mut writer).await?;
                        if command == Command::Finish {
                            return Ok(());
                        }
                        self.obey(command, shared, version, &mut writer).await?;
                    }
                    Ok(_) => {}
                    Err(RecvError::Closed | RecvError::Lagged(_)) => return Err(Over),
                },
                _ = bookmarks.tick(), if self.bookmarks => self.send_bookmark(shared, version, &mut writer).await?,
                () = sleep_until(end) => return Ok(()),
                () = writer.gone() => return Err(Over),
            }
        }
    }

    async fn send_present(&self, shared: &Shared, writer: &mut Writer) -> Result<u64, Over> {
        let (version, events) = self.present(shared);
        writer.send(&events).await?;
        if self.tells_end {
            self.bookmark(version, true, writer).await?;
        }
        Ok(version)
    }

    /// Returns the present objects as events, and their version.
    fn present(&self, shared: &Shared) -> (u64, Bytes) {
        let (version, objects) = {
            let state = shared.lock();
            let version = state.store.version();
            let is_this = |list: &&List| {
                (list.version, list.resource, &list.selector, list.format)
                    == (version, self.resource, &self.selector, self.format)
            };
            if let Some(list) = state.lists.iter().flatten().find(is_this) {
                return (version, list.events.clone());
            }
            (version, state.store.at(self.resource, version, &self.selector).unwrap_or_default())
        };
        let events: Vec<u8> = objects.iter().flat_map(|object| self.format.event("ADDED", object)).collect();
        let events = Bytes::from(events);
        if let Some(lists) = &mut shared.lock().lists {
            let (resource, selector, format) = (self.resource, self.selector.clone(), self.format);
            lists.push(List { version, resource, selector, format, events: events.clone() });
        }
        (version, events)
    }

    /// Sends what changed after a version. Returns the version up to which everything was sent.
    async fn send_changes(&self, shared: &Shared, after: u64, writer: &mut Writer) -> Result<u64, Over> {
        let news = self.news(&shared.lock().store, after);
        let (version, notices) = match news {
            Ok(news) => news,
            Err(TooOld(oldest)) => return self.expire(after, oldest, writer).await,
        };
        for notice in notices {
            writer.send(&self.format.event(notice.kind, &notice.object)).await?;
        }
        Ok(version.max(after))
    }

    fn news(&self, store: &Store, after: u64) -> Result<(u64, Vec<Notice>), TooOld> {
        Ok((store.version(), store.changes(self.resource, after, &self.selector)?))
    }

    async fn obey(&self, command: Command, shared: &Shared, version: u64, writer: &mut Writer) -> Result<(), Over> {
        match command {
            Command::End(ending) => Err(writer.end(ending).await),
            Command::Finish => Ok(()),
            Command::Expire => self.expire(version, version + 1, writer).await,
            Command::Bookmark => self.send_bookmark(shared, version, writer).await,
            Command::Bytes(bytes) => writer.send(&bytes).await,
            Command::Flood(mut bytes) => {
                while bytes > 0 {
                    let wave = bytes.min(WAVE);
                    writer.send(&vec![b'x'; wave]).await?;
                    bytes -= wave;
                }
                Ok(())
            }
        }
    }

    async fn expire<T>(&self, version: u64, oldest: u64, writer: &mut Writer) -> Result<T, Over> {
        let refusal = Refusal::new(410, format!("too old resource version: {version} ({oldest})"));
        writer.send(&self.format.event("ERROR", &refusal.json())).await?;
        Err(Over)
    }

    /// Sends a bookmark, unless the watch is from a version in the future: a real server sends none in that case.
    async fn send_bookmark(&self, shared: &Shared, version: u64, writer: &mut Writer) -> Result<(), Over> {
        let present = shared.lock().store.version();
        if version > present { Ok(()) } else { self.bookmark(version, false, writer).await }
    }

    async fn bookmark(&self, version: u64, is_end: bool, writer: &mut Writer) -> Result<(), Over> {
        let mut metadata = json!({ "resourceVersion": version.to_string(), "creationTimestamp": null });
        if is_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let object = json!({
            "kind": self.resource.kind(), "apiVersion": self.resource.api_version(), "metadata": metadata,
        });
        writer.send(&self.format.event("BOOKMARK", &object)).await
    }
}
