//! Reads what the pages show: the kernel's tables and connections, the running proxy, and the way of a packet.
//!
//! Takes a path and a query; returns a page. One reading of the tables, or the error of one that failed, serves all requests until it is old
//! ([`Latest`]); then one request reads again, and the others wait for it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use hyper::StatusCode;

use super::explain::{self, Form, Told};
use super::page::Page;
use super::query::{ListQuery, decoded, parameter};
use super::reading::{Latest, Reading};
use super::{history, list, service};
use crate::changes;
use crate::client::Client;
use crate::history::{Entry, Query};
use crate::output::Tone;
use crate::running::{Running, RunningArgs};
use crate::services::causes::Causes;

/// How long the running proxy may take for a part of its history.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most parts of the history that are read for a page: another program at the proxy's address may offer parts without end.
const MOST_PARTS: usize = 64;

/// This node as the pages show it.
pub(super) struct Node {
    running: RunningArgs,
    /// The metrics server of the proxy, if the user named one.
    metrics: Option<SocketAddr>,
    latest: Latest,
}

impl Node {
    pub(super) fn new(running: RunningArgs, metrics: Option<SocketAddr>) -> Self {
        Self { running, metrics, latest: Latest::default() }
    }

    /// The page at this path.
    pub(super) fn page(&self, path: &str, query: &str) -> Page {
        let made = match path {
            "/" => self.with_reading(|reading| list::page(reading, &ListQuery::parse(query))),
            "/history" => Ok(self.history(&parameter(query, "service"))),
            "/explain" => Ok(self.explain(&Form::parse(query))),
            _ => match path.strip_prefix("/service/").and_then(|rest| rest.split_once('/')) {
                Some((namespace, name)) => self.service(&format!("{}/{}", decoded(namespace), decoded(name))),
                None => Ok(Page::failure(StatusCode::NOT_FOUND, "There is no such page")),
            },
        };
        made.unwrap_or_else(|error| Page::failure(StatusCode::SERVICE_UNAVAILABLE, &format!("{error:#}")))
    }

    /// Calls `work` with a fresh reading, which is taken first if the latest one is old.
    fn with_reading<T>(&self, work: impl FnOnce(&Reading) -> T) -> Result<T> {
        self.latest.with(|stats| Reading::take(stats, self.running, self.metrics), work)
    }

    fn service(&self, name: &str) -> Result<Page> {
        let (content, metrics) = self.with_reading(|reading| (service::Content::of(reading, name), reading.metrics))?;
        Ok(match content {
            Err(unknown) => Page::failure(StatusCode::NOT_FOUND, &format!("{unknown:#}")),
            Ok(content) => {
                let causes = Causes::ask(metrics, &content.frontends());
                let changes = latest_changes(metrics, Some(name), service::CHANGES);
                service::page(name, &content, &causes, &changes)
            }
        })
    }

    fn history(&self, service: &str) -> Page {
        let metrics = self.metrics.unwrap_or_else(|| Running::find().metrics());
        let service = Some(service).filter(|service| !service.is_empty());
        history::page(service, &latest_changes(metrics, service, history::CHANGES))
    }

    fn explain(&self, form: &Form) -> Page {
        let told = form.is_filled().then(|| {
            // Without a reading, names of Services are not known, but a packet between two addresses can be explained.
            let (cluster_ips, problems) = self
                .with_reading(|reading| {
                    let cluster_ips = explain::cluster_ips(&reading.listing.view.frontends);
                    (cluster_ips, reading.listing.problems.clone())
                })
                .unwrap_or_default();
            Told::of(form, &cluster_ips, &problems)
        });
        explain::page(form, told.as_ref())
    }
}

/// The latest entries of the proxy's history, the newest first; or in words why there are none.
fn latest_changes(metrics: SocketAddr, service: Option<&str>, most: usize) -> Result<Vec<Entry>, (Tone, String)> {
    let read = || -> Result<Vec<Entry>> {
        let client = Client::new(metrics, PATIENCE)?;
        let mut query = Query { since: None, service: service.map(super::query::encoded), after: 0 };
        let mut latest = Vec::new();
        for _ in 0..MOST_PARTS {
            let part = changes::page(&client, &mut query)?;
            latest.extend(part.changes);
            latest.drain(..latest.len().saturating_sub(most));
            if !part.more {
                break;
            }
        }
        latest.reverse();
        Ok(latest)
    };
    read().map_err(|error| (Tone::Warning, format!("What the proxy changed is not known: {error:#}")))
}
