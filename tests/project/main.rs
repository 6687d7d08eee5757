//! What the repository promises about itself: its sources, pages, scripts, kept rulesets and inputs, its image, and its tests' own tools.

#![forbid(unsafe_code)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../../benches/figures/mod.rs"]
mod bench_figures;
mod chart;
mod contributing;
mod corpora;
mod coverage;
mod distributions;
mod figures;
mod golden;
mod guests;
mod image;
mod kernels;
mod links;
mod log_calls;
mod marks;
mod matrix;
mod merge;
mod monitoring;
mod names;
mod objects;
mod packages;
mod pages;
mod plugin;
mod regressions;
mod scripts;
mod security;
mod source_package;
mod supply_chain;
mod tools;
mod tools_of_clusters;
mod walk;
mod walls;
mod workflows;
