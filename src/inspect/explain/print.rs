//! Prints an explanation for people.

use std::net::SocketAddr;

use anyhow::Result;
use nft::machine::{Link, Packet};

use super::verdict::{EffectiveRule, Explanation, MasqueradeSource, Verdict};
use super::words;
use crate::output::{Cell, Column, Output, Table, Tone};
use component::logging::escaped;

/// The indentation of a sentence's lines after the first one.
const HANG: usize = 2;
/// The indentation of lines below a step.
const STEP: usize = 5;

/// Prints the packet, with the pod that it comes from if the user named one, the verdict with its reason, the endpoints and the steps; with
/// `is_wide` the rules too.
pub(super) fn print(
    out: &mut Output<'_>,
    packet: &Packet,
    pod: Option<&str>,
    explanation: &Explanation,
    is_wide: bool,
) -> Result<()> {
    let word = out.styled(tone_of(explanation), explanation.verdict.to_string().to_uppercase());
    out.line(packet_line(packet, pod), HANG)?;
    out.line(format_args!("{word}: {}", escaped(&explanation.reason)), HANG)?;
    if let Some(line) = masquerading(explanation) {
        out.line(escaped(&line), HANG)?;
    }
    for warning in &explanation.warnings {
        let word = out.styled(Tone::Warning, "warning");
        out.line(format_args!("{word}: {}", escaped(warning)), HANG)?;
    }
    if !explanation.endpoints.is_empty() {
        out.text("\n")?;
        endpoints(out, explanation)?;
    }
    if !explanation.steps.is_empty() {
        out.text("\n")?;
        steps(out, &explanation.steps, is_wide)?;
    }
    Ok(())
}

/// The tone of the verdict about the packet.
pub(crate) const fn tone_of(explanation: &Explanation) -> Tone {
    match explanation.verdict {
        Verdict::Passed if explanation.is_wrong => Tone::Bad,
        Verdict::Translated if explanation.is_wrong => Tone::Warning,
        Verdict::Translated | Verdict::Proxied => Tone::Good,
        verdict => tone(verdict),
    }
}

/// The tone of the verdict about an endpoint.
pub(crate) const fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Translated | Verdict::Passed | Verdict::Proxied => Tone::Plain,
        Verdict::Partly | Verdict::Refused | Verdict::Dropped => Tone::Bad,
        Verdict::Unknown => Tone::Warning,
    }
}

fn packet_line(packet: &Packet, pod: Option<&str>) -> String {
    let way = arrival(packet);
    let pod = pod.map_or_else(String::new, |pod| format!(" ({pod})"));
    format!("{}{pod} -> {}, {way}", words::source(packet), words::target(packet))
}

/// Where the packet comes into this host.
pub(super) fn arrival(packet: &Packet) -> String {
    match &packet.input {
        Link::None => "sent by this host".to_owned(),
        Link::Unknown => "arrives at an unknown interface".to_owned(),
        Link::Known(_, name) => format!("arrives at {}", escaped(name)),
    }
}

/// Whether and why the endpoint sees another source address, and which; `None` for a packet that does not reach an endpoint.
pub(crate) fn masquerading(explanation: &Explanation) -> Option<String> {
    let masqueraded = explanation.endpoints.iter().filter(|endpoint| endpoint.masquerade).count();
    let why = || explanation.masquerade_reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let sources = || sources(explanation);
    match (explanation.verdict, masqueraded) {
        (Verdict::Translated | Verdict::Partly, 0) => {
            Some("Not masqueraded: the endpoint sees the source of the packet.".to_owned())
        }
        (Verdict::Translated | Verdict::Partly, count) if count == explanation.endpoints.len() => {
            Some(format!("Masqueraded{}.{}", why(), sources()))
        }
        (Verdict::Translated | Verdict::Partly, count) => {
            Some(format!("Masqueraded for {count} of {} endpoints{}.{}", explanation.endpoints.len(), why(), sources()))
        }
        _ => None,
    }
}

/// The sources that masqueraded packets get, in sentences that follow another one.
fn sources(explanation: &Explanation) -> String {
    let sources = &explanation.masquerade_sources;
    let sentence = |MasqueradeSource { source, reason, endpoints }: &MasqueradeSource| {
        let who = match &endpoints[..] {
            all if all.len() == explanation.endpoints.len() => "The endpoint".to_owned(),
            [only] => only.to_string(),
            [first, others @ ..] => format!("{first} and {} more", others.len()),
            [] => return String::new(),
        };
        format!(" {who} sees {source}, {reason}.")
    };
    let more = sources.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" {more} more sources are in -o json.") } else { String::new() };
    sources.iter().take(MOST_NAMED).map(sentence).collect::<String>() + &more
}

fn endpoints(out: &mut Output<'_>, explanation: &Explanation) -> Result<()> {
    let mut table = Table::new([
        Column::text("ENDPOINT"),
        Column::number("PROBABILITY"),
        Column::text("MASQUERADED"),
        Column::text("VERDICT"),
    ]);
    for endpoint in &explanation.endpoints {
        table.row([
            Cell::from(SocketAddr::new(endpoint.address, endpoint.port)),
            Cell::from(format!("{:.1}%", endpoint.probability * 100.0)),
            Cell::from(if endpoint.masquerade { "yes" } else { "no" }),
            Cell::new(tone(endpoint.verdict), endpoint.verdict),
        ]);
    }
    out.table(&table)
}

/// The heading above the steps for some endpoints names at most this many of them.
const MOST_NAMED: usize = 3;

fn steps(out: &mut Output<'_>, steps: &[EffectiveRule], is_wide: bool) -> Result<()> {
    let mut about: &[SocketAddr] = &[];
    for (number, step) in (1..).zip(steps) {
        if step.endpoints != about {
            about = &step.endpoints;
            let names: Vec<String> = about.iter().take(MOST_NAMED).map(ToString::to_string).collect();
            let more = about.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            out.text(format_args!("To {}{more}:\n", names.join(", ")))?;
        }
        let chain = out.styled(Tone::Strong, escaped(&step.chain));
        out.line(format_args!("{number:3}. {chain}: {}", escaped(&step.text)), STEP)?;
        if is_wide {
            let rule = step.shown();
            let rule = out.styled(Tone::Faint, format!("table {}: {}", escaped(&step.table), escaped(rule)));
            out.text(format_args!("{:STEP$}{rule}\n", ""))?;
        }
    }
    Ok(())
}
