//! The layouts of the ruleset as the parameter of a test: `test_in_each_layout!(NAME)` above `fn NAME(layout: Layout)` makes the tests
//! `NAME::maps`, `NAME::chains` and `NAME::service_chains` of it; with `, ignore = "REASON"` these run only where they are asked for.

/// How the proxy lays out its ruleset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Maps from a frontend to its endpoints.
    Maps,
    /// A chain for each Service and each endpoint, as mode iptables has them.
    Chains,
    /// A chain for each Service; endpoints are elements of maps.
    ServiceChains,
}

impl Layout {
    /// Every layout.
    pub(crate) const ALL: [Self; 3] = [Self::Maps, Self::Chains, Self::ServiceChains];

    /// Returns the layout's name in directories and in names of tests.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Maps => "maps",
            Self::Chains => "chains",
            Self::ServiceChains => "service-chains",
        }
    }

    /// Returns the value of the field `rulesetLayout`.
    pub(crate) const fn field(self) -> &'static str {
        if matches!(self, Self::Maps) { "maps" } else { "chains" }
    }

    /// Returns the value of the field `endpointChains`.
    pub(crate) const fn has_endpoint_chains(self) -> bool {
        !matches!(self, Self::ServiceChains)
    }

    /// Returns the flags that select the layout.
    pub(crate) fn flags(self) -> [String; 2] {
        [format!("--ruleset-layout={}", self.field()), format!("--endpoint-chains={}", self.has_endpoint_chains())]
    }

    /// Returns the name of the map of endpoints, which layout `chains` has with counters.
    pub(crate) const fn endpoints(self) -> &'static str {
        if matches!(self, Self::Maps) { "endpoints" } else { "counted-endpoints" }
    }

    /// Returns the layout to switch to in tests. Each layout is the other one of exactly one layout, so tests that switch there and back
    /// from each layout make all six possible switches.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Maps => Self::Chains,
            Self::Chains => Self::ServiceChains,
            Self::ServiceChains => Self::Maps,
        }
    }
}

#[allow(unused_macros, reason = "not every test binary has tests of both layouts")]
macro_rules! test_in_each_layout {
    ($name:ident $(, ignore = $reason:literal)?) => {
        mod $name {
            use crate::support::layout::Layout;

            #[test]
            $(#[ignore = $reason])?
            fn maps() {
                super::$name(Layout::Maps);
            }

            #[test]
            $(#[ignore = $reason])?
            fn chains() {
                super::$name(Layout::Chains);
            }

            #[test]
            $(#[ignore = $reason])?
            fn service_chains() {
                super::$name(Layout::ServiceChains);
            }
        }
    };
}

#[allow(unused_imports, reason = "not every test binary has tests of both layouts")]
pub(crate) use test_in_each_layout;
