//! The page that explains a packet: a form, the drawing of the packet's way, and the words of `kube-proxy explain` beside it.
//!
//! [`Told::of`] reads the rules that the packet meets, and asks the API server for the addresses of a named pod; the rest is pure.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Error, Result};
use hyper::StatusCode;
use nft::machine::Packet;

use super::list::option;
use super::page::{Page, Tab, chip, notice, table};
use super::query::parameter;
use crate::explain::place::{self, FromArg, ToArg};
use crate::explain::print::{masquerading, tone, tone_of};
use crate::explain::{self, Explanation, drawing};
use crate::markup::Markup;
use crate::output::{Cell, Column, Table, Tone};
use crate::running::Problem;
use crate::tables::FrontendView;
use rules::model::Frontend;

/// The most endpoints in the table.
const MOST_ENDPOINTS: usize = 100;
/// The protocols of the form.
const PROTOCOLS: [&str; 4] = ["tcp", "udp", "sctp", "icmp"];

/// What the user has filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    from: String,
    to: String,
    /// One of [`PROTOCOLS`].
    protocol: &'static str,
}

impl Form {
    pub(super) fn parse(query: &str) -> Self {
        let protocol = parameter(query, "protocol");
        let protocol = PROTOCOLS.into_iter().find(|known| *known == protocol).unwrap_or(PROTOCOLS[0]);
        Self { from: parameter(query, "from"), to: parameter(query, "to"), protocol }
    }

    pub(super) fn is_filled(&self) -> bool {
        !self.from.is_empty() && !self.to.is_empty()
    }

    /// The argument `--to`: a protocol behind the destination counts, else the chosen one.
    fn target(&self) -> String {
        let slashes = self.to.matches('/').count();
        let has_protocol = slashes > usize::from(place::has_namespace(&self.to));
        if has_protocol || self.protocol == PROTOCOLS[0] {
            self.to.clone()
        } else {
            format!("{}/{}", self.to, self.protocol)
        }
    }
}

/// The cluster IPs, each with its service port.
pub(super) fn cluster_ips(frontends: &[FrontendView]) -> Vec<(Arc<str>, Frontend)> {
    place::cluster_ips(frontends).into_iter().map(|(service, frontend)| (Arc::from(service), frontend)).collect()
}

/// The answer about a packet, or in words why there is none.
pub(super) struct Told(Result<(Packet, Option<String>, Explanation), String>);

impl Told {
    /// Explains the packet that the form describes.
    pub(super) fn of(form: &Form, cluster_ips: &[(Arc<str>, Frontend)], problems: &[Problem]) -> Self {
        let tell = || -> Result<_> {
            let from: FromArg =
                form.from.parse().map_err(|error| Error::msg(format!("cannot read the source: {error}")))?;
            let to: ToArg =
                form.target().parse().map_err(|error| Error::msg(format!("cannot read the destination: {error}")))?;
            let known: Vec<(&str, Frontend)> =
                cluster_ips.iter().map(|(service, frontend)| (&**service, *frontend)).collect();
            let pair = place::resolve_among(&from, &to, &known, problems)?;
            let (packet, explanation) = explain::answer(&pair, None, problems)?;
            Ok((packet, pair.pod, explanation))
        };
        Self(tell().map_err(|error| format!("{:#}", crate::explain_rights(error))))
    }
}

/// The page with the form, and with the answer if there is one.
pub(super) fn page(form: &Form, told: Option<&Told>) -> Page {
    Page::new(StatusCode::OK, ("Explain", Tab::Explain, false), |main| {
        main.leaf("h1", &[], "Explain a packet");
        write_form(main, form);
        match told {
            None => main.leaf(
                "p",
                &[("class", &"faint")],
                "What the rules in the kernel do with the first packet of a connection; with a port at the source, with the next one of a \
                 tracked connection. Nothing is sent.",
            ),
            Some(Told(Err(error))) => notice(main, Tone::Bad, error),
            Some(Told(Ok((packet, pod, explanation)))) => answer(main, form, (packet, pod.as_deref()), explanation),
        }
    })
}

fn write_form(main: &mut Markup, form: &Form) {
    main.element("form", &[("action", &"/explain"), ("class", &"filter")], |out| {
        for (label, name, value, example) in
            [("From", "from", &form.from, "IP or namespace/pod"), ("To", "to", &form.to, "IP:port or namespace/name")]
        {
            out.leaf("label", &[("for", &name)], label);
            let focus: &[(&str, &dyn Display)] =
                if value.is_empty() && name == "from" { &[("autofocus", &"")] } else { &[] };
            let field = [
                ("id", &name as &dyn Display),
                ("name", &name),
                ("value", value),
                ("placeholder", &example),
                ("required", &""),
            ];
            out.void("input", &[&field[..], focus].concat());
        }
        out.literal("<label for=\"protocol\">Protocol</label>");
        out.element("select", &[("id", &"protocol"), ("name", &"protocol")], |select| {
            PROTOCOLS.iter().for_each(|name| option(select, name, &name.to_uppercase(), *name == form.protocol));
        });
        out.literal("<button>Explain</button>");
    });
}

fn answer(main: &mut Markup, form: &Form, (packet, pod): (&Packet, Option<&str>), explanation: &Explanation) {
    main.element("div", &[("class", &"beside")], |beside| {
        beside.element("figure", &[], |figure| drawing::draw(figure, packet, pod, explanation));
        beside.element("section", &[("aria-label", &"In words")], |section| {
            section.element("p", &[("class", &"verdict")], |line| {
                chip(line, &Cell::new(tone_of(explanation), explanation.verdict), None);
                line.text(format_args!(" {}", explanation.reason));
            });
            if let Some(line) = masquerading(explanation) {
                section.leaf("p", &[], line);
            }
            explanation.warnings.iter().for_each(|warning| notice(section, Tone::Warning, warning));
            endpoints(section, explanation);
            steps(section, explanation);
            let command = format!("kube-proxy explain --from {} --to {} -o svg", form.from, form.target());
            section.element("p", &[("class", &"faint")], |line| {
                line.text("The drawing as a file: ");
                line.leaf("code", &[], command);
            });
        });
    });
}

fn endpoints(section: &mut Markup, explanation: &Explanation) {
    if explanation.endpoints.is_empty() {
        return;
    }
    let columns =
        [Column::text("ENDPOINT"), Column::number("SHARE"), Column::text("MASQUERADED"), Column::text("VERDICT")];
    let mut cells = Table::new(columns);
    for endpoint in explanation.endpoints.iter().take(MOST_ENDPOINTS) {
        cells.row([
            Cell::from(SocketAddr::new(endpoint.address, endpoint.port)),
            Cell::from(format!("{:.1}%", endpoint.probability * 100.0)),
            Cell::from(if endpoint.masquerade { "yes" } else { "no" }),
            Cell::new(tone(endpoint.verdict), endpoint.verdict),
        ]);
    }
    section.leaf("h2", &[], "Endpoints");
    table(section, "Endpoints", &cells, |_, _| None);
    let more = explanation.endpoints.len().saturating_sub(MOST_ENDPOINTS);
    if more > 0 {
        section.leaf("p", &[("class", &"faint")], format_args!("{more} more endpoints"));
    }
}

/// The rules that had an effect, numbered as in the drawing.
fn steps(section: &mut Markup, explanation: &Explanation) {
    if explanation.steps.is_empty() {
        return;
    }
    section.leaf("h2", &[], "Rules");
    section.element("ol", &[("class", &"steps")], |list| {
        for step in &explanation.steps {
            let marked = if step.decides { "decides" } else { "" };
            list.element("li", &[("class", &marked)], |item| {
                item.leaf("b", &[], &step.chain);
                item.text(format_args!(": {}", step.text));
                item.leaf("code", &[], format_args!("table {}: {}", step.table, step.shown()));
            });
        }
    });
}
