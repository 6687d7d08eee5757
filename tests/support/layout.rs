//! The layouts of the ruleset as the parameter of a test: `test_in_each_layout!(NAME)` above `fn NAME(layout: Layout)` makes the tests
//! `NAME::maps` and `NAME::chains` of it; with `, ignore = "REASON"` these run only where they are asked for.

/// How the proxy lays out its ruleset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Maps from a front to its endpoints.
    Maps,
    /// A chain for each Service and each endpoint, as mode iptables has them.
    Chains,
}

impl Layout {
    /// Its name in the field `rulesetLayout`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Maps => "maps",
            Self::Chains => "chains",
        }
    }

    /// The other layout.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Maps => Self::Chains,
            Self::Chains => Self::Maps,
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
        }
    };
}

#[allow(unused_imports, reason = "not every test binary has tests of both layouts")]
pub(crate) use test_in_each_layout;
