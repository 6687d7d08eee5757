//! What events amount to: the whole line from the model to the text of the rules.

use std::sync::OnceLock;

use component::config::{self, Config, Invocation};
use kube_proxy::sync::{Engine, NoKernel};
use rules::model::{Event, Family};
use rules::ruleset::Layout;

/// A configuration by flags only.
pub(super) fn config() -> Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    let flags = ["kube-proxy", "--hostname-override=node", "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56"];
    let load = || match config::load(flags.map(Into::into)) {
        Ok(Invocation::Run(config)) => config,
        other => panic!("{other:?}"),
    };
    CONFIG.get_or_init(load).clone()
}

/// Takes events through model, selection and ruleset.
pub(super) fn programmed(events: Vec<Event>) {
    if events.is_empty() {
        return;
    }
    for layout in Layout::ALL {
        let mut engine = Engine::new(config(), layout, &Family::BOTH, NoKernel::default());
        events.iter().cloned().for_each(|event| {
            engine.apply(event);
        });
        engine.apply(Event::InitialListDone);
        assert!(engine.content().to_string().contains("table ip kube-proxy"));
    }
}
