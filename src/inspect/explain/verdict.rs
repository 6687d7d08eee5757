//! Makes one explanation from the paths of a packet: verdict, endpoints, masquerading, reason, and the steps in words.
//!
//! Pure. Branches that differ only in their endpoint are described once. A world is a set of assumptions about rules that cannot be
//! evaluated (see [`nft::machine`]). All worlds have to agree; otherwise the verdict is [`Verdict::Unknown`], and the reason says what cannot
//! be evaluated.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use nft::Hook;
use nft::decode::ChainHead;
use nft::machine::{Branch, Effect, Fate, Packet, Step, Walk};

use crate::output::written_as_json;

use super::words::{self, Seen, Sentence, is_ours};
use rules::ruleset::kinds::ChainKind;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It goes to an endpoint.
    Translated,
    /// It goes to an endpoint, and some of the endpoints that it may go to cannot be reached.
    Partly,
    /// It is answered with a refusal.
    #[serde(alias = "rejected")]
    Refused,
    /// It is discarded.
    Dropped,
    /// The rules let it pass unchanged.
    Passed,
    /// The rules let it pass; kube-proxy itself accepts the connection and opens another one to an endpoint.
    Proxied,
    /// It is not known, because of a rule that cannot be evaluated.
    Unknown,
}

written_as_json!(Verdict);

/// An endpoint that the packet may go to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Endpoint {
    /// The address to which the packet's destination is translated.
    pub address: IpAddr,
    /// The port to which the packet's destination is translated.
    pub port: u16,
    /// The share of connections like this one that the endpoint gets, from 0 to 1.
    pub probability: f64,
    /// Whether the connection is masqueraded, so that the endpoint does not see the client's address.
    pub masquerade: bool,
    /// The verdict of packets to it: `translated`, unless something stops them after the translation.
    pub verdict: Verdict,
}

/// The source that masqueraded packets get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MasqueradeSource {
    /// The address.
    pub(crate) source: IpAddr,
    /// Why it is this one.
    pub(crate) reason: String,
    /// The endpoints that see it.
    pub(crate) endpoints: Vec<SocketAddr>,
}

/// A rule that had an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveRule {
    /// The family and name of its table, as in `ip kube-proxy`.
    pub table: String,
    /// The name of its chain.
    pub chain: String,
    /// The rule in nft syntax; empty for the policy of a chain, and when the rule is not known.
    pub rule: String,
    /// What the rule did, in words.
    pub text: String,
    /// The endpoints whose packets it applies to; empty when it applies to the packet whichever endpoint it goes to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<SocketAddr>,
    /// The hook at which the kernel calls the base chain that led to it; `None` when that is not known. For drawings.
    #[serde(skip)]
    pub(crate) hook: Option<Hook>,
    /// Whether the rule decides what becomes of the packet. For drawings.
    #[serde(skip)]
    pub(crate) decides: bool,
    /// Whether it is the policy of a chain and no rule.
    #[serde(skip)]
    pub(crate) is_policy: bool,
}

impl EffectiveRule {
    /// The rule as it is shown: in nft syntax, or what the policy of a chain does. A rule that was gone before it was read is not known.
    pub(crate) fn shown(&self) -> &str {
        match self.rule.as_str() {
            "" if self.is_policy => "policy drop",
            "" => "a rule that is not known",
            rule => rule,
        }
    }

    /// Makes the value from a rule, the sentence that describes it, and the endpoints whose packets it applies to.
    pub(crate) fn of(seen: &Seen<'_>, sentence: &Sentence, endpoints: Vec<SocketAddr>) -> Self {
        Self {
            table: seen.table.to_string(),
            chain: seen.chain.to_owned(),
            rule: seen.rule.map_or_else(String::new, |rule| rule.to_nft(seen.table.family)),
            text: sentence.text.clone(),
            endpoints,
            hook: None,
            decides: seen.effects.iter().any(|effect| matches!(effect, Effect::Translate(_))),
            is_policy: seen.effects.contains(&Effect::Policy),
        }
    }
}

/// The answer of `explain` about one packet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// What becomes of the packet.
    pub verdict: Verdict,
    /// The service port that the packet is for.
    pub service: Option<String>,
    /// The endpoints that the packet may go to.
    pub endpoints: Vec<Endpoint>,
    /// Whether the connection is masqueraded, whichever endpoint it goes to.
    pub masquerade: bool,
    /// The reason for the verdict.
    pub reason: String,
    /// The reason for masquerading.
    #[serde(rename = "masqueradeReason")]
    pub(crate) masquerade_reason: Option<String>,
    /// The sources that masquerading gives, as far as they are known.
    #[serde(rename = "masqueradeSources")]
    pub(crate) masquerade_sources: Vec<MasqueradeSource>,
    /// The rules that had an effect on the packet, in order.
    pub steps: Vec<EffectiveRule>,
    /// Warnings about things outside the evaluated rules that may change the verdict.
    pub warnings: Vec<String>,
    /// Whether the command exits with 1, whatever the verdict is, because something is wrong with the node.
    #[serde(skip)]
    pub(crate) is_wrong: bool,
    /// The program other than the proxy that translates the packet, in words, and its new destination.
    #[serde(skip)]
    pub(crate) translated_before: Option<(String, SocketAddr)>,
}

impl Explanation {
    /// An explanation with a verdict, its Service and its reason; all else is empty.
    pub(crate) fn new(verdict: Verdict, service: Option<String>, reason: String) -> Self {
        let (endpoints, steps, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let (masquerade, masquerade_reason, masquerade_sources) = (false, None, Vec::new());
        let (is_wrong, translated_before) = (false, None);
        Self {
            verdict,
            service,
            endpoints,
            masquerade,
            reason,
            masquerade_reason,
            masquerade_sources,
            steps,
            warnings,
            is_wrong,
            translated_before,
        }
    }

    /// The explanation of a packet that meets chains of iptables-legacy after other chains of the same priority, or before them: the kernel
    /// does not tell which.
    pub(super) fn in_either_order(after: Self, before: Self) -> Self {
        if (after.verdict, &after.endpoints) == (before.verdict, &before.endpoints) {
            return after;
        }
        let reason = format!(
            "chains of iptables-legacy run before or after others of the same priority, and the kernel does not tell which. Before: {}, {}. \
             After: {}, {}",
            before.verdict, before.reason, after.verdict, after.reason
        );
        let is_same = after.verdict == before.verdict && matches!(after.verdict, Verdict::Refused | Verdict::Dropped);
        let verdict = if is_same { after.verdict } else { Verdict::Unknown };
        let mut warnings = after.warnings.clone();
        warnings.extend(before.warnings.into_iter().filter(|warning| !after.warnings.contains(warning)));
        let translated_before = before.translated_before;
        Self { verdict, reason, warnings, translated_before, is_wrong: after.is_wrong || before.is_wrong, ..after }
    }
}

/// Branches with the same verdict and masquerading, which differ in their endpoint.
struct Class<'a> {
    branches: Vec<&'a Branch>,
}

impl Class<'_> {
    fn endpoints(&self) -> Vec<SocketAddr> {
        self.branches.iter().filter_map(|branch| endpoint(branch)).collect()
    }
}

/// Explains a walk. `service` is the service port that has the packet's frontend, if a map of the proxy has it.
pub(crate) fn explain(walk: &Walk, packet: &Packet, service: Option<&str>) -> Explanation {
    let worlds = worlds(&walk.branches);
    let (first, agree) = agreement(&worlds);
    let service = walk.branches.iter().find_map(named).or(service).map(str::to_owned);
    let endpoints = endpoints(first);
    let teller = Teller { service: service.as_deref(), endpoints: endpoints.len() };
    let told = teller.steps(first, &walk.bases);
    let sentences: Vec<&Sentence> = told.iter().map(|(_, sentence)| sentence).collect();
    let verdict = if agree { overall(first) } else { Verdict::Unknown };
    let mut explanation = Explanation {
        masquerade: !endpoints.is_empty() && endpoints.iter().all(|endpoint| endpoint.masquerade),
        masquerade_reason: first
            .iter()
            .any(|branch| branch.masqueraded)
            .then(|| {
                sentences.iter().rev().find(|sentence| sentence.is_masquerade).map(|sentence| sentence.text.clone())
            })
            .flatten()
            .map(|text| text.split_once(": ").map_or(text.clone(), |(_, why)| why.to_owned())),
        steps: told.iter().map(|(told, _)| told.clone()).collect(),
        warnings: warnings(walk),
        translated_before: first.iter().find_map(|branch| translated_before(branch)),
        endpoints,
        ..Explanation::new(verdict, service, String::new())
    };
    explanation.reason = match verdict {
        Verdict::Unknown => unknown(&walk.branches),
        Verdict::Translated if walk.known.is_some() => tracked("translated", &explanation),
        Verdict::Passed if walk.known.is_some() => tracked("not translated", &explanation),
        Verdict::Translated | Verdict::Partly => translated(&explanation, first, &sentences),
        Verdict::Passed if first.iter().any(|branch| is_answered_ping(branch)) => last_reason(&sentences),
        Verdict::Passed | Verdict::Proxied => passed(explanation.service.as_deref(), packet),
        Verdict::Dropped | Verdict::Refused if !explanation.endpoints.is_empty() || unrouted(first).is_some() => {
            translated(&explanation, first, &sentences)
        }
        Verdict::Dropped | Verdict::Refused => last_reason(&sentences),
    };
    mark_decision(&mut explanation, &sentences);
    explanation
}

/// The last sentence that gives a reason, or else the last of all.
fn last_reason(sentences: &[&Sentence]) -> String {
    let last = sentences.iter().rev().find(|sentence| sentence.is_reason).or(sentences.last());
    last.map_or_else(String::new, |sentence| sentence.text.clone())
}

/// Whether it is a ping to an address of a Service, which this node answers.
fn is_answered_ping(branch: &Branch) -> bool {
    branch.steps.iter().any(|step| {
        let translates = step.effects.iter().any(|effect| matches!(effect, Effect::Translate(_)));
        translates && is_ours(&step.table) && ChainKind::of(&step.chain) == Some(ChainKind::Pings)
    })
}

/// The endpoint that a branch goes to.
fn endpoint(branch: &Branch) -> Option<SocketAddr> {
    branch.endpoint.filter(|_| !is_answered_ping(branch))
}

/// Marks the rule that gives the reason as the one that decides. A translated packet keeps its marks: the rules that translate have them. A
/// packet that passes gets no mark.
fn mark_decision(explanation: &mut Explanation, sentences: &[&Sentence]) {
    if matches!(explanation.verdict, Verdict::Translated) {
        return;
    }
    explanation.steps.iter_mut().for_each(|step| step.decides = false);
    let stops = !matches!(explanation.verdict, Verdict::Passed | Verdict::Proxied);
    let reason = sentences.iter().rposition(|sentence| sentence.is_reason);
    if let Some(step) = reason.filter(|_| stops).and_then(|index| explanation.steps.get_mut(index)) {
        step.decides = true;
    }
}

/// Groups the branches by world, that is by the assumptions about rules that cannot be evaluated.
fn worlds(branches: &[Branch]) -> Vec<Vec<&Branch>> {
    let mut worlds: BTreeMap<Vec<(usize, bool)>, Vec<&Branch>> = BTreeMap::new();
    for branch in branches {
        worlds.entry(branch.worlds.clone()).or_default().push(branch);
    }
    worlds.into_values().collect()
}

/// The first world, and whether it is certain: the other worlds have the same endpoints and verdict, and none of its branches is unknown.
fn agreement<'a, 'b>(worlds: &'a [Vec<&'b Branch>]) -> (&'a [&'b Branch], bool) {
    let Some((first, others)) = worlds.split_first() else { return (&[], true) };
    let agree = others.iter().all(|other| endpoints(other) == endpoints(first) && overall(other) == overall(first));
    (first, agree && !first.iter().any(|branch| matches!(branch.fate, Some(Fate::Unknown(_)))))
}

fn verdict_of(branch: &Branch) -> Verdict {
    match &branch.fate {
        Some(Fate::Dropped | Fate::Unrouted(_)) => Verdict::Dropped,
        Some(Fate::Refused) => Verdict::Refused,
        Some(Fate::Unknown(_)) => Verdict::Unknown,
        None if endpoint(branch).is_some() => Verdict::Translated,
        None => Verdict::Passed,
    }
}

/// The verdict of a world: the first one of its branches in the order of [`Verdict`]; `partly` when some of its branches are translated and
/// others are not.
fn overall(branches: &[&Branch]) -> Verdict {
    match branches.iter().map(|branch| verdict_of(branch)).min() {
        None => Verdict::Passed,
        Some(Verdict::Translated) if branches.iter().any(|branch| verdict_of(branch) != Verdict::Translated) => {
            Verdict::Partly
        }
        Some(best) => best,
    }
}

fn endpoints(branches: &[&Branch]) -> Vec<Endpoint> {
    let mut found: Vec<Endpoint> = Vec::new();
    for branch in branches {
        let Some(to) = endpoint(branch) else { continue };
        let (masquerade, verdict) = (branch.masqueraded, verdict_of(branch));
        let known = found.iter_mut().find(|known| {
            (known.address, known.port, known.masquerade, known.verdict) == (to.ip(), to.port(), masquerade, verdict)
        });
        match known {
            Some(known) => known.probability += branch.probability,
            None => found.push(Endpoint {
                address: to.ip(),
                port: to.port(),
                probability: branch.probability,
                masquerade,
                verdict,
            }),
        }
    }
    found.sort_by_key(|endpoint| (endpoint.address, endpoint.port));
    found
}

/// The service port in the comments of the elements that our rules found for this branch.
fn named(branch: &Branch) -> Option<&str> {
    let ours = branch.steps.iter().filter(|step| is_ours(&step.table));
    let comments = ours.flat_map(|step| &step.found).filter_map(|found| found.comment.as_deref());
    comments.rev().find(|comment| comment.contains('/')).map(without_notes)
}

/// The service port in the comment of a map element, without the notes in brackets that may follow it.
pub(crate) fn without_notes(comment: &str) -> &str {
    comment.split(" (").next().unwrap_or(comment)
}

/// The program other than the proxy that translates the packet on this path, and its new destination.
fn translated_before(branch: &Branch) -> Option<(String, SocketAddr)> {
    let others = branch.steps.iter().filter(|step| !is_ours(&step.table));
    let mut targets = others.flat_map(|step| {
        let by = move || words::program(&step.table, &step.chain);
        step.effects.iter().filter_map(move |effect| match effect {
            Effect::Translate(to) => Some((by(), *to)),
            _ => None,
        })
    });
    targets.next()
}

/// Describes the steps of branches in words.
struct Teller<'a> {
    service: Option<&'a str>,
    endpoints: usize,
}

impl Teller<'_> {
    /// The first steps, as far as all branches have them in common, then the further steps of each class of branches.
    fn steps(&self, branches: &[&Branch], bases: &[ChainHead]) -> Vec<(EffectiveRule, Sentence)> {
        let Some((first, others)) = branches.split_first() else { return Vec::new() };
        let is_common = |index: usize| {
            others
                .iter()
                .all(|other| other.steps.get(index).zip(first.steps.get(index)).is_some_and(|(a, b)| a.is_same(b)))
        };
        let common = (0..first.steps.len()).take_while(|index| is_common(*index)).count();
        let mut told: Vec<(EffectiveRule, Sentence)> =
            (0..common).map(|index| self.tell(&first.steps[index..], true, Vec::new())).collect();
        let hook = set_hooks(&mut told, None, bases);
        let classes = classes(branches);
        for class in &classes {
            let endpoints = class.endpoints();
            let is_example = endpoints.len() > 1;
            let about = if classes.len() > 1 { endpoints } else { Vec::new() };
            let Some(example) = class.branches.first() else { continue };
            let (rest, from) = (common..example.steps.len(), told.len());
            told.extend(rest.map(|index| self.tell(&example.steps[index..], is_example, about.clone())));
            set_hooks(&mut told[from..], hook, bases);
        }
        told
    }

    /// Describes `steps[0]`; the next step shows whether a rule of the chain that it leads to had an effect.
    fn tell(&self, steps: &[Step], is_example: bool, about: Vec<SocketAddr>) -> (EffectiveRule, Sentence) {
        let step = &steps[0];
        let seen = Seen {
            table: &step.table,
            chain: &step.chain,
            rule: step.rule(),
            effects: &step.effects,
            packet: &step.packet,
            service: self.service,
            endpoints: (self.endpoints > 0).then_some(self.endpoints),
            is_example,
            goes_on: steps.get(1).is_some_and(|next| next.table == step.table && step.leads_to(&next.chain)),
            is_translated: self.endpoints > 0,
        };
        let sentence = words::sentence(&seen);
        (EffectiveRule::of(&seen, &sentence, about), sentence)
    }
}

/// Gives each rule its hook: that of the last base chain so far, or `hook` before the first one. Returns the hook of the last rule.
fn set_hooks(told: &mut [(EffectiveRule, Sentence)], mut hook: Option<Hook>, bases: &[ChainHead]) -> Option<Hook> {
    for (rule, _) in told {
        hook = hook_of(rule, bases).or(hook);
        rule.hook = hook;
    }
    hook
}

/// The hook of the rule's chain; `None` if it is no base chain.
fn hook_of(rule: &EffectiveRule, bases: &[ChainHead]) -> Option<Hook> {
    let base = bases.iter().find(|base| *base.name == *rule.chain && base.table.to_string() == rule.table)?;
    Hook::of_number(base.hook.as_ref()?.number)
}

fn classes<'a>(branches: &[&'a Branch]) -> Vec<Class<'a>> {
    let mut classes: BTreeMap<(Verdict, bool), Vec<&Branch>> = BTreeMap::new();
    for branch in branches {
        classes.entry((verdict_of(branch), branch.masqueraded)).or_default().push(branch);
    }
    classes.into_values().map(|branches| Class { branches }).collect()
}

/// Why this host cannot send a packet on.
fn unrouted<'a>(branches: &[&'a Branch]) -> Option<&'a str> {
    branches.iter().find_map(|branch| match &branch.fate {
        Some(Fate::Unrouted(why)) => Some(&**why),
        _ => None,
    })
}

/// The reason for a packet of a tracked connection.
fn tracked(how: &str, explanation: &Explanation) -> String {
    let to = explanation.endpoints.first();
    let to = to.map_or_else(String::new, |to| format!(", to {}", SocketAddr::new(to.address, to.port)));
    format!(
        "the kernel tracks this connection already: its packets are {how}{to}, as the first one was, and no Service is looked up for them"
    )
}

fn translated(explanation: &Explanation, branches: &[&Branch], sentences: &[&Sentence]) -> String {
    let count = explanation.endpoints.len();
    let stopped = explanation.endpoints.iter().filter(|endpoint| endpoint.verdict != Verdict::Translated).count();
    let to = match &explanation.endpoints[..] {
        [] => return unrouted(branches).unwrap_or_default().to_owned(),
        [only] => SocketAddr::new(only.address, only.port).to_string(),
        _ => format!("one of {count} endpoints"),
    };
    let by_rule = || sentences.iter().rev().find(|sentence| sentence.is_reason).map_or("", |sentence| &sentence.text);
    let why = || {
        let which = if stopped == count { String::new() } else { format!("{stopped} of these cannot be reached: ") };
        which + unrouted(branches).unwrap_or_else(by_rule)
    };
    let by = explanation.translated_before.as_ref().map(|(by, _)| &**by).or(explanation.service.as_deref());
    sent(by, &to, (stopped > 0).then(why).as_deref())
}

/// Says who sends a packet where, and why it does not get there, if it does not.
pub(crate) fn sent(by: Option<&str>, to: &str, stopped: Option<&str>) -> String {
    let to = format!("{} sends it to {to}", by.unwrap_or("another program's rule"));
    stopped.map_or_else(|| to.clone(), |why| format!("{to}, but {why}"))
}

/// Says why the rules let a packet pass unchanged.
pub(crate) fn passed(service: Option<&str>, packet: &Packet) -> String {
    match service {
        Some(service) => format!("{service} has {}, but the rules do not translate it", words::target(packet)),
        None => format!("no Service has {}, and no rule stops it", words::target(packet)),
    }
}

fn unknown(branches: &[Branch]) -> String {
    let assumed = branches.iter().flat_map(|branch| &branch.steps).flat_map(|step| {
        step.effects.iter().filter_map(move |effect| match effect {
            Effect::Assumed(why) if is_ours(&step.table) => Some(why.clone()),
            Effect::Assumed(why) => Some(format!("another program: {why}")),
            _ => None,
        })
    });
    let mut reasons: Vec<String> = assumed.collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons.join("; ")
}

fn warnings(walk: &Walk) -> Vec<String> {
    let ours = walk.chains.iter().position(|chain| is_ours(&chain.table)).unwrap_or(0);
    let earlier = walk.chains[..ours].iter().map(|chain| {
        let hook = walk.hook;
        let at = chain.hook.as_ref().map_or(0, |hook| hook.priority);
        format!(
            "table {}, chain {} of another program sees the packet before the Services (hook {hook}, priority {at}); its rules were \
             evaluated",
            chain.table, chain.name
        )
    });
    let unrouted = walk.unrouted.iter().map(|(to, why)| format!("this host does not send packets to {to}: {why}"));
    earlier.chain(unrouted).collect()
}
