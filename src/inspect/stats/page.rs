//! The frame of all pages, and what several of them show: tables, states, sentences about problems.
//!
//! Pure: takes values, writes HTML.

use std::fmt::Display;

use hyper::StatusCode;

use super::query::encoded;
use crate::markup::{Markup, class};
use crate::names::split_port;
use crate::output::{Cell, Table, Tone};

/// A page with its status.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) status: StatusCode,
    pub(super) html: String,
}

/// Where a page is in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Services,
    History,
    Explain,
    None,
}

const TABS: [(Tab, &str, &str); 3] =
    [(Tab::Services, "/", "Services"), (Tab::History, "/history", "History"), (Tab::Explain, "/explain", "Explain")];

impl Page {
    /// A page with this title, content and status. A live page is fetched again every few seconds.
    pub(super) fn new(
        status: StatusCode,
        (title, tab, is_live): (&str, Tab, bool),
        content: impl FnOnce(&mut Markup),
    ) -> Self {
        let mut page = Markup::default();
        page.literal("<!doctype html>");
        page.element("html", &[("lang", &"en")], |html| {
            html.element("head", &[], |head| self::head(head, title));
            html.element("body", &[], |body| {
                header(body, tab, is_live);
                let live: &[(&str, &dyn Display)] = if is_live { &[("data-live", &"")] } else { &[] };
                body.element("main", &[&[("id", &"content" as &dyn Display)], live].concat(), content);
            });
        });
        Self { status, html: page.into_string() }
    }

    /// A page that says why the requested one cannot be shown.
    pub(super) fn failure(status: StatusCode, text: &str) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self::new(status, (title, Tab::None, status.is_server_error()), |main| {
            main.leaf("h1", &[], title);
            notice(main, Tone::Bad, text);
        })
    }
}

fn head(head: &mut Markup, title: &str) {
    head.literal("<meta charset=\"utf-8\"/>");
    head.void("meta", &[("name", &"viewport"), ("content", &"width=device-width, initial-scale=1")]);
    head.leaf("title", &[], format_args!("{title} - kube-proxy"));
    head.literal("<link rel=\"stylesheet\" href=\"/style.css\"/><link rel=\"icon\" href=\"/icon.svg\"/>");
    head.literal("<script src=\"/live.js\" defer></script>");
}

fn header(body: &mut Markup, tab: Tab, is_live: bool) {
    body.literal("<a class=\"skip\" href=\"#content\">Skip to the content</a>");
    body.element("header", &[], |header| {
        header.leaf("span", &[("class", &"brand")], "kube-proxy");
        header.element("nav", &[("aria-label", &"Pages")], |nav| {
            for (its, address, name) in TABS {
                let current: &[(&str, &dyn Display)] = if its == tab { &[("aria-current", &"page")] } else { &[] };
                nav.leaf("a", &[&[("href", &address as &dyn Display)], current].concat(), name);
            }
        });
        if is_live {
            header.literal(
                "<span id=\"stale\" class=\"bad\" role=\"status\" hidden>No answer: what you see is old</span>",
            );
            header.literal("<button id=\"pause\" type=\"button\" hidden>Pause</button>");
        }
    });
}

/// A sentence that stands out.
pub(super) fn notice(out: &mut Markup, tone: Tone, text: &str) {
    out.leaf("p", &[("class", &format!("notice {}", class(tone)))], text);
}

/// Sentences about problems and about what is not shown; nothing if there are none.
pub(super) fn notices(out: &mut Markup, sentences: &[(Tone, String)]) {
    /// The most sentences that are shown; the others are counted.
    const MOST: usize = 50;
    sentences.iter().take(MOST).for_each(|(tone, text)| notice(out, *tone, text));
    if sentences.len() > MOST {
        notice(out, Tone::Bad, &format!("{} more problems: kube-proxy services lists all", sentences.len() - MOST));
    }
}

/// A word about a state in its colour, with a number behind it if there is one.
pub(super) fn chip(out: &mut Markup, cell: &Cell, count: Option<usize>) {
    let count = count.map_or_else(String::new, |count| format!(" {count}"));
    out.leaf("span", &[("class", &format!("chip {}", class(cell.tone)))], format_args!("{}{count}", cell.text));
}

/// The address of the page about a Service, `namespace/name`; `None` when the name has no namespace.
pub(super) fn service_address(service: &str) -> Option<String> {
    let (namespace, name) = split_port(service).0.split_once('/')?;
    Some(format!("/service/{}/{}", encoded(namespace), encoded(name)))
}

/// A table as the commands print it. A cell for which `address` has an address is a link.
pub(super) fn table(out: &mut Markup, caption: &str, table: &Table, address: impl Fn(&str, &Cell) -> Option<String>) {
    scrolled(out, caption, |out| {
        out.element("thead", &[], |head| {
            head.element("tr", &[], |row| {
                for column in &table.columns {
                    heading(row, column.heading, column.is_number);
                }
            });
        });
        out.element("tbody", &[], |body| {
            for cells in &table.rows {
                body.element("tr", &[], |row| {
                    for (column, cell) in table.columns.iter().zip(cells) {
                        let link = address(column.heading, cell);
                        data(row, column.heading, column.is_number, |data| match link {
                            Some(link) => data.leaf("a", &[("href", &link)], &cell.text),
                            None if cell.text.is_empty() => {}
                            None => data.leaf("span", &[("class", &class(cell.tone))], &cell.text),
                        });
                    }
                });
            }
        });
    });
}

/// A table in a box that scrolls by itself when it is wider than the screen.
pub(super) fn scrolled(out: &mut Markup, caption: &str, fill: impl FnOnce(&mut Markup)) {
    out.element(
        "div",
        &[("class", &"scroll"), ("tabindex", &0), ("role", &"region"), ("aria-label", &caption)],
        |scroll| {
            scroll.element("table", &[], |table| {
                table.leaf("caption", &[("class", &"unseen")], caption);
                fill(table);
            });
        },
    );
}

/// The heading of a column, in small letters: the style sheet makes the first one large.
pub(super) fn heading(row: &mut Markup, text: &str, is_number: bool) {
    row.leaf("th", &[("scope", &"col"), ("class", &side(is_number))], text.to_lowercase());
}

/// A cell. On narrow screens the style sheet shows the name of its column before most cells.
pub(super) fn data(row: &mut Markup, column: &str, is_number: bool, fill: impl FnOnce(&mut Markup)) {
    let column = column.to_lowercase();
    row.element("td", &[("data-column", &column), ("class", &side(is_number))], fill);
}

/// The class of a column's cells, which says where they are aligned.
pub(super) const fn side(is_number: bool) -> &'static str {
    if is_number { "number" } else { "text" }
}
