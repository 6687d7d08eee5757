//! Finds out which kube-proxy wrote the tables, and their form: layout, whether each endpoint has a chain, number of maps.
//!
//! `read` asks the kernel for the few objects that show the form, `adopt` copies the form to a configuration, and `contradiction` compares
//! the two. Tables in another form differ in nearly every element from those that the configuration asks for, so `verify` says that in one
//! sentence.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use nft::{Connection, Expr, TableName};

use super::report::DescribedDifference;
use crate::sync::is_upstreams_chain;
use component::config::{Config, RulesetLayout};
use inspect::explain_rights;
use inspect::running::Running;
use node::counters::endpoint_maps;
use rules::ruleset::kinds::ChainKind;
use rules::ruleset::names::{chain, set};

/// The most chains whose rules are read to find out whether endpoints have chains.
const MOST_CHAINS: usize = 64;

/// A table, with its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    table: TableName,
    form: Form,
}

/// Which program wrote a table, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Upstream's kube-proxy in mode nftables wrote it.
    Upstreams,
    /// This program wrote it.
    Ours {
        layout: RulesetLayout,
        /// Whether it has a chain for each endpoint; `None` in layout `maps`, and when no chain shows it.
        endpoint_chains: Option<bool>,
        /// The number of maps of endpoints of each kind.
        maps: u8,
    },
}

/// Returns a difference if none of the tables exists: then no proxy has written its rules, and no command repairs that.
///
/// # Errors
/// When they cannot be read.
pub(super) fn none(connection: &mut Connection, tables: &[TableName]) -> Result<Option<DescribedDifference>> {
    for table in tables {
        let found =
            connection.table(table).with_context(|| format!("cannot read table {table}")).map_err(explain_rights)?;
        if found.is_some() {
            return Ok(None);
        }
    }
    let why = Running::find().waits().unwrap_or_else(|| "start it".to_owned());
    let names: Vec<String> = tables.iter().map(ToString::to_string).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let text = |tables: &str| {
        format!("no kube-proxy of this program has written {tables} yet, so no Service is served: {why}")
    };
    Ok(Some(DescribedDifference::of_tables(&names, text)))
}

/// Reads the form of each table; tables that do not exist, or that show neither form, are left out.
///
/// # Errors
/// When they cannot be read.
pub(super) fn read(connection: &mut Connection, tables: &[TableName]) -> Result<Vec<Written>> {
    let mut written = Vec::new();
    for table in tables {
        let form = read_form(connection, table).map_err(anyhow::Error::from);
        let form = form.with_context(|| format!("cannot read table {table}")).map_err(explain_rights)?;
        written.extend(form.map(|form| Written { table: table.clone(), form }));
    }
    Ok(written)
}

fn read_form(connection: &mut Connection, table: &TableName) -> Result<Option<Form>, nft::ReadError> {
    let layout = if connection.set(table, set::SERVICES)?.is_some() {
        RulesetLayout::Maps
    } else if connection.set(table, set::CHAINS_SERVICES)?.is_some() {
        RulesetLayout::Chains
    } else {
        let outline = connection.outline(table)?.unwrap_or_default();
        let is_upstreams = outline.chains.keys().any(|name| is_upstreams_chain(name));
        return Ok((is_upstreams && !outline.chains.contains_key(chain::SERVICES)).then_some(Form::Upstreams));
    };
    let endpoint_chains = match layout {
        RulesetLayout::Maps => None,
        RulesetLayout::Chains => endpoint_chains(connection, table)?,
    };
    let maps = endpoint_maps(connection, table)?.unwrap_or(1);
    Ok(Some(Form::Ours { layout, endpoint_chains, maps }))
}

/// Whether a table of layout `chains` has a chain for each endpoint; `None` when none of the first [`MOST_CHAINS`] chains that choose an
/// endpoint shows it.
fn endpoint_chains(connection: &mut Connection, table: &TableName) -> Result<Option<bool>, nft::ReadError> {
    // Skip chains without rules: they may be left from the other form, because a proxy deletes an emptied chain only in a later transaction.
    let outline = connection.outline(table)?.unwrap_or_default();
    let chains: BTreeSet<&str> = outline.rules.iter().map(|rule| &*rule.chain).collect();
    let is_of = |chain: &&&str, is_it: fn(&ChainKind) -> bool| ChainKind::of(chain).is_some_and(|kind| is_it(&kind));
    if chains.iter().any(|chain| is_of(&chain, |kind| matches!(kind, ChainKind::Endpoint))) {
        return Ok(Some(true));
    }
    let balancers = chains.iter().filter(|chain| is_of(chain, |kind| matches!(kind, ChainKind::Balancer { .. })));
    for chain in balancers.take(MOST_CHAINS) {
        let rules = connection.rules(table, chain)?;
        // A chain that hashes the client shows nothing: with scheduler Maglev, endpoints are elements in both forms.
        let hashes = |expr: &Expr| matches!(expr, Expr::Jhash { .. });
        if !rules.iter().any(|head| head.rule.exprs.iter().any(hashes)) {
            return Ok(Some(false));
        }
    }
    Ok(None)
}

/// Copies the layout of the tables to the fields of `config` for whose flags `says` names no source. If `config` has no number of maps, the
/// comparison takes that of the tables.
pub(super) fn adopt(written: &[Written], config: &mut Config, says: impl Fn(&str) -> Option<String>) {
    let ours = written.iter().find(|written| written.form != Form::Upstreams);
    let Some(Written { form: Form::Ours { layout, endpoint_chains, .. }, .. }) = ours else { return };
    if says("ruleset-layout").is_none() {
        config.ruleset_layout = *layout;
    }
    if let Some(endpoint_chains) = endpoint_chains.filter(|_| says("endpoint-chains").is_none()) {
        config.endpoint_chains = endpoint_chains;
    }
}

/// Returns one sentence if the tables are upstream's, or have another form than the configuration asks for. `says` names what sets the
/// value of a flag.
pub(super) fn contradiction(
    written: &[Written],
    config: &Config,
    says: impl Fn(&str) -> Option<String>,
) -> Option<DescribedDifference> {
    let says = |flag: &str| says(flag).unwrap_or_else(|| "the configuration".to_owned());
    // Each sentence has a text before the names of the tables and a text after them; both fit one table and several tables.
    type Sentence = (&'static str, String);
    let find = |is_it: &dyn Fn(&Form) -> Option<Sentence>| {
        let of = |written: &Written| is_it(&written.form).map(|text| (written.table.to_string(), text));
        let found: Vec<(String, Sentence)> = written.iter().filter_map(of).collect();
        let (_, (before, behind)) = found.first()?.clone();
        let names: Vec<&str> = found.iter().map(|(table, _)| &**table).collect();
        let text = |tables: &str| format!("{before} {tables}{behind}");
        Some(DescribedDifference::of_tables(&names, text))
    };
    let upstreams = |form: &Form| {
        (*form == Form::Upstreams).then(|| ("upstream's kube-proxy in mode nftables wrote", UPSTREAMS.to_owned()))
    };
    let another = |form: &Form| match *form {
        Form::Ours { layout, .. } if layout != config.ruleset_layout => {
            let behind =
                format!(" is {layout}, and {} says {}: {REMEDY}", says("ruleset-layout"), config.ruleset_layout);
            Some(("the layout of", behind))
        }
        Form::Ours { endpoint_chains: Some(has), .. } if has != config.endpoint_chains => {
            let (before, wanted) =
                if has { ("each endpoint has a chain in", "none") } else { ("no endpoint has a chain in", "each") };
            Some((before, format!(", and {} says {wanted}: {REMEDY}", says("endpoint-chains"))))
        }
        Form::Ours { maps, .. } => config.endpoint_maps.filter(|wanted| *wanted != maps).map(|wanted| {
            let noun = if maps == 1 { "map" } else { "maps" };
            let behind = format!(" share {maps} {noun}, and {} says {wanted}: {REMEDY}", says("endpoint-maps"));
            ("the endpoints of", behind)
        }),
        Form::Upstreams => None,
    };
    find(&upstreams).or_else(|| find(&another))
}

const UPSTREAMS: &str = ", and not this program, so nothing was compared: end upstream's kube-proxy and start this one, which replaces the rules";
const REMEDY: &str = "nothing else was compared; leave the flag out to compare the table as it was written, or start a proxy that is \
                      configured so, which writes it anew";

#[cfg(test)]
mod tests {
    use super::*;
    use component::config::{self, Invocation};

    fn config(flags: &[&str]) -> Config {
        let flags = ["kube-proxy", "--manifests=/m", "--hostname-override=here"].iter().chain(flags);
        match config::load(flags.map(Into::into)).unwrap() {
            Invocation::Run(config) => config,
            other => panic!("{other:?}"),
        }
    }

    fn tables(form: Form) -> Vec<Written> {
        let table = |family| Written { table: TableName::new(family, "kube-proxy"), form };
        [nft::Family::Ip, nft::Family::Ip6].map(table).to_vec()
    }

    const fn ours(layout: RulesetLayout, endpoint_chains: Option<bool>, maps: u8) -> Form {
        Form::Ours { layout, endpoint_chains, maps }
    }

    #[test]
    fn who_asks_for_another_form_is_named_in_one_sentence() {
        let text = |form, flags: &[&str]| {
            let says = |flag: &str| flags.iter().any(|given| given.contains(flag)).then(|| format!("--{flag}"));
            contradiction(&tables(form), &config(flags), says).map(|found| found.to_string())
        };
        let chains = |endpoint_chains| ours(RulesetLayout::Chains, endpoint_chains, 1);
        let start = |text: Option<String>| text.unwrap().split(": ").next().unwrap().to_owned();
        assert_eq!(text(ours(RulesetLayout::Maps, None, 1), &[]), None);
        assert_eq!(
            start(text(ours(RulesetLayout::Maps, None, 1), &["--ruleset-layout=chains"])),
            "the layout of the tables ip kube-proxy and ip6 kube-proxy is maps, and --ruleset-layout says chains"
        );
        assert!(start(text(chains(Some(true)), &[])).ends_with(" is chains, and the configuration says maps"));
        let chosen = ["--ruleset-layout=chains", "--endpoint-chains=false"];
        assert!(
            start(text(chains(Some(true)), &chosen))
                .starts_with("each endpoint has a chain in the tables ip kube-proxy")
        );
        let one = contradiction(&tables(chains(Some(true)))[..1], &config(&chosen), |_| None).unwrap().to_string();
        assert!(
            one.starts_with("each endpoint has a chain in the table ip kube-proxy, and the configuration says none"),
            "{one}"
        );
        assert_eq!(text(chains(Some(false)), &chosen), None);
        assert_eq!(text(chains(None), &chosen), None, "without endpoints both are the same");
        assert!(
            start(text(ours(RulesetLayout::Maps, None, 1), &["--endpoint-maps=4"]))
                .ends_with("ip6 kube-proxy share 1 map, and --endpoint-maps says 4")
        );
        assert_eq!(text(ours(RulesetLayout::Maps, None, 16), &[]), None, "nobody asks for a number of maps");
        assert_eq!(text(ours(RulesetLayout::Maps, None, 16), &["--endpoint-maps=0"]), None);
        assert!(
            text(Form::Upstreams, &[]).unwrap().starts_with("upstream's kube-proxy in mode nftables wrote the tables")
        );
    }

    #[test]
    fn the_form_of_the_tables_is_taken_where_nobody_asks_for_one() {
        let written = tables(ours(RulesetLayout::Chains, Some(false), 8));
        let adopted = |flags: &[&str], says: fn(&str) -> Option<String>| {
            let mut config = config(flags);
            adopt(&written, &mut config, says);
            (config.ruleset_layout, config.endpoint_chains)
        };
        assert_eq!(adopted(&[], |_| None), (RulesetLayout::Chains, false));
        assert_eq!(adopted(&[], |_| Some("the file".to_owned())), (RulesetLayout::Maps, true));
        let given = |flag: &str| (flag == "endpoint-chains").then(|| "--endpoint-chains".to_owned());
        assert_eq!(adopted(&["--endpoint-chains=true"], given), (RulesetLayout::Chains, true));
    }
}
