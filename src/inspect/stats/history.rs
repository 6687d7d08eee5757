//! The page of what the running proxy changed. Pure.

use hyper::StatusCode;

use super::page::{Page, Tab, notice, service_address, table};
use crate::changes;
use crate::history::Entry;
use crate::markup::Markup;
use crate::output::Tone;

/// The most entries on the page.
pub(super) const CHANGES: usize = 200;

/// The page with these entries, the newest first; or with the reason why there are none.
pub(super) fn page(service: Option<&str>, entries: &Result<Vec<Entry>, (Tone, String)>) -> Page {
    Page::new(StatusCode::OK, ("History", Tab::History, true), |main| {
        main.leaf("h1", &[], "History");
        main.element("form", &[("action", &"/history"), ("class", &"filter"), ("role", &"search")], |form| {
            form.literal("<label for=\"service\">Service</label>");
            let value = service.unwrap_or_default();
            let field = [("id", &"service" as &dyn std::fmt::Display), ("name", &"service"), ("value", &value)];
            form.void("input", &[&field[..], &[("placeholder", &"namespace/name")]].concat());
            form.literal("<button>Show</button>");
        });
        changes_of(main, "What the proxy changed, the newest first", entries);
        main.leaf(
            "p",
            &[("class", &"faint")],
            format_args!("The last {CHANGES} entries: kube-proxy changes prints all that are kept"),
        );
    })
}

/// The entries as a table.
pub(super) fn changes_of(out: &mut Markup, caption: &str, entries: &Result<Vec<Entry>, (Tone, String)>) {
    match entries {
        Err((tone, text)) => notice(out, *tone, text),
        Ok(entries) if entries.is_empty() => out.leaf("p", &[("class", &"faint")], "No changes."),
        Ok(entries) => {
            let address = |column: &str, cell: &crate::output::Cell| {
                (column == "SERVICE").then(|| service_address(&cell.text)).flatten()
            };
            table(out, caption, &changes::table(entries, false), address);
        }
    }
}
